"""`acktree bench`: measures the acker, Spark and workers, each beside something to compare it with."""

import json
import os
import platform
from contextlib import ExitStack
from statistics import median
from typing import Any

import click

from acktree.console.commands.options import (
    Decorated,
    client_settings_option,
    format_option,
    own_broker_option,
)
from acktree.console.devbroker.broker import LocalBroker
from acktree.console.devbroker.owner import leaving_on_signals

PIPELINES = ("pass-through", "line-split")


def without_native_option(command: Decorated) -> Decorated:
    """Add `--without-native`: what the use of other libraries' private parts buys."""

    def switch_off(_context: click.Context, _parameter: click.Parameter, is_off: bool) -> None:
        if is_off:
            os.environ["ACKTREE_NATIVE"] = "off"

    return click.option(
        "--without-native",
        is_flag=True,
        expose_value=False,
        callback=switch_off,
        help="Measure with ACKTREE_NATIVE=off.",
    )(command)


@click.group()
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure this machine."""
    context.with_resource(leaving_on_signals())


@bench.command()
@own_broker_option
@click.option("--pending", default=1_000_000, show_default=True, help="Roots pending while folding alone.")
@click.option("--acks", default=10_000_000, show_default=True, help="Acks in the backlog of large records.")
@click.option("--memory-roots", default=4_000_000, show_default=True, help="Roots for the memory figure.")
@click.option("--partitions", default="1", show_default=True, help="Acker counts, such as 1,2,4,64.")
@client_settings_option
@format_option
def acker(
    bootstrap: str | None,
    pending: int,
    acks: int,
    memory_roots: int,
    partitions: str,
    settings: dict[str, str],
    style: str,
) -> None:
    """Measure the acker: fold alone, memory a root, and draining a backlog from Kafka.

    Rates are events a second; where it says CPU, a second of the acker's own processor time.
    """
    from acktree.console.benches import acker_fold, acker_kafka

    _print_machine(style)
    memory = acker_fold.measure_memory(memory_roots)
    _print_measurement(
        style,
        f"memory at {memory_roots:,} pending: {memory.bytes_per_root:.1f} bytes a root, "
        f"longest fold of 100,000 inits while growing {memory.longest_ms:.0f} ms",
        memory._asdict() | {"roots": memory_roots},
    )
    fold = acker_fold.measure_fold(pending)
    _print_measurement(
        style,
        f"fold alone at {pending:,} pending: {fold.table_per_s / 1e6:.1f} M events/CPU s, longest call "
        f"{fold.longest_ms:.0f} ms; plain dict {fold.dict_per_s / 1e6:.1f} M, "
        f"ratio {fold.table_per_s / fold.dict_per_s:.1f}",
        fold._asdict() | {"pending": pending},
    )
    with ExitStack() as running:
        if bootstrap is None:
            bootstrap = running.enter_context(LocalBroker()).bootstrap
        for count in (int(number) for number in partitions.split(",")):
            for per_record, total in ((500, acks), (10, acks // 5)):
                drained = acker_kafka.measure_backlog(bootstrap, total, per_record, 200_000, count, settings)
                _print_measurement(
                    style,
                    f"through Kafka, {count} partition(s), {per_record} a record, {drained.acks:,} acks: "
                    f"{drained.per_s / 1e6:.1f} M/s, {drained.per_cpu_s / 1e6:.1f} M/CPU s, "
                    f"folded again by a new owner in {drained.refold_s:.1f} s",
                    drained._asdict() | {"partitions": count, "per_record": per_record},
                )


@bench.command()
@own_broker_option
@click.option("--records", default=200_000, show_default=True, help="Records of 100 bytes a run.")
@click.option("--rounds", default=3, show_default=True, help="Measured runs of each kind, in turn.")
@click.option(
    "--pipeline",
    "pipelines",
    multiple=True,
    type=click.Choice(PIPELINES),
    default=PIPELINES,
    show_default=True,
    help="What the stage does; may be given twice.",
)
@click.option("--block", default=0, metavar="N", help="Also tracked by blocks of N records.")
@click.option("--rival", is_flag=True, help="Beside Spark's own Kafka connector, too; fetches Spark 4.0.")
@click.option("--small", is_flag=True, help="Measure triggers of 100 records instead.")
@click.option("--start", is_flag=True, help="Measure the start of `spark run` to its first record instead.")
@without_native_option
@format_option
def spark(
    bootstrap: str | None,
    records: int,
    rounds: int,
    pipelines: tuple[str, ...],
    block: int,
    rival: bool,
    small: bool,
    start: bool,
    style: str,
) -> None:
    """Measure Spark with tracking beside Spark without, start of the query included.

    CPU is that of Spark's driver, JVM and Python workers and of the acker; the broker's is left out.
    """
    from acktree.console.benches import spark_stage
    from acktree.console.benches.cpu_time import CpuClock

    _print_machine(style)
    with ExitStack() as running:
        broker = (
            None if bootstrap else running.enter_context(LocalBroker(settings=spark_stage.SHORT_DELETE_DELAY))
        )
        address = broker.bootstrap if broker else bootstrap or ""
        if start:
            _spark_starts(address, rounds, style)
            return
        clock = running.enter_context(CpuClock(os.getpid(), broker.pid if broker else None))
        source = spark_stage.fill(address, 0 if small else records)
        own = spark_stage.OwnSpark(address, source, records, clock)
        if small:
            took_ms = own.measure_small(records=100, triggers=10 * rounds + 5)[5:]
            _print_measurement(
                style,
                f"triggers of 100 records: median {median(took_ms):.0f} ms, "
                f"{min(took_ms):.0f} to {max(took_ms):.0f} ms, {len(took_ms)} triggers",
                {"records": 100, "took_ms": took_ms},
            )
            return
        measures: dict[str, spark_stage.Measure] = {"tracked": own.tracked, "untracked": own.untracked}
        if block > 1:
            measures[f"tracked by blocks of {block}"] = own.tracked_by_block(block)
        if rival:
            other = spark_stage.Rival(address, source, clock)
            running.callback(other.stop)
            measures |= {"Spark's connector": other.plain, "with Python": other.with_python}
        for pipeline, runs in spark_stage.compare(measures, rounds, pipelines):
            lines = spark_stage.table(pipeline, runs, records)
            for (kind, of_kind), line in zip(runs.items(), lines, strict=True):
                about = {"pipeline": pipeline, "kind": kind, "records": records}
                _print_measurement(style, line, about | {"runs": [run._asdict() for run in of_kind]})


@bench.command()
@own_broker_option
@click.option("--records", default=1_000_000, show_default=True, help="Records of 100 bytes a run.")
@click.option("--rounds", default=3, show_default=True, help="Measured runs of each kind, in turn.")
@click.option("--kinds", default="all", show_default=True, help="Such as plain,basic,batch.")
@click.option("--latency", is_flag=True, help="Measure the latency of whole trees instead.")
@click.option("--rate", default=5_000, show_default=True, help="Records a second, with --latency.")
@click.option("--seconds", default=20.0, show_default=True, help="How long a run is, with --latency.")
@without_native_option
@format_option
def worker(
    bootstrap: str | None,
    records: int,
    rounds: int,
    kinds: str,
    latency: bool,
    rate: int,
    seconds: float,
    style: str,
) -> None:
    """Measure bolts with tree acks beside a plain confluent-kafka loop, or the latency of whole trees.

    CPU is that of the worker's process, its Kafka client's threads included. Broker and worker share the
    machine, so records a second say less than CPU seconds per million records. With --latency, a tree is
    spout to bolt to acker to the spout's ack, counted from when its record was due.
    """
    _print_machine(style)
    with ExitStack() as running:
        if bootstrap is None:
            bootstrap = running.enter_context(LocalBroker()).bootstrap
        if latency:
            _tree_latency(bootstrap, rate, seconds, rounds, style)
        else:
            _worker_rates(bootstrap, records, rounds, kinds, style)


@bench.command()
@own_broker_option
@click.option("--rounds", default=3, show_default=True, help="Kills of each kind, in turn.")
@format_option
def failover(bootstrap: str | None, rounds: int, style: str) -> None:
    """Measure how long a killed worker keeps the acker from reading what the others ack.

    Half a minute for each kind and round: at least once; exactly once; exactly once with a
    group.instance.id, started again under it at once.
    """
    from acktree.console.benches import failover as benched

    _print_machine(style)
    with ExitStack() as running:
        if bootstrap is None:
            bootstrap = running.enter_context(LocalBroker()).bootstrap
        for _ in range(rounds):
            for kind in benched.KINDS:
                cost = benched.measure(bootstrap, kind)
                _print_measurement(
                    style,
                    f"{kind}: T.ack stood still for {cost.after_s:.1f} s at most after the kill "
                    f"({cost.before_s:.1f} s before it)",
                    cost._asdict() | {"kind": kind},
                )


def _spark_starts(bootstrap: str, rounds: int, style: str) -> None:
    from acktree.console.benches.spark_start import measure_start

    for _ in range(rounds):
        took = measure_start(bootstrap)
        _print_measurement(
            style,
            f"first record after {took.total_s:.1f} s, {took.cpu_s:.1f} CPU s: Python {took.python_s:.1f} s, "
            f"JVM and session {took.session_s:.1f} s, query {took.query_s:.1f} s, "
            f"first batch {took.batch_s:.1f} s",
            took._asdict(),
        )


def _worker_rates(bootstrap: str, records: int, rounds: int, kinds: str, style: str) -> None:
    from acktree.console.benches import worker_rate

    chosen = worker_rate.KINDS if kinds == "all" else tuple(kinds.split(","))
    if unknown := set(chosen) - set(worker_rate.KINDS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose from {', '.join(worker_rate.KINDS)}")
    if style == "text":
        click.echo(f"{records:,} records of 100 bytes, {rounds} round(s), medians")
    rates = worker_rate.compare(bootstrap, records, rounds, chosen)
    if style == "text":
        for line in worker_rate.table(rates):
            click.echo(line)
    for kind, runs in rates.items() if style == "json" else ():
        about = {"kind": kind, "records": records, "runs": [run._asdict() for run in runs]}
        click.echo(json.dumps(about))


def _tree_latency(bootstrap: str, rate: int, seconds: float, rounds: int, style: str) -> None:
    from acktree.console.benches import worker_latency
    from acktree.producers.worker.gc_tuning import collect_rarely

    collect_rarely()
    for _ in range(rounds):
        for name, exactly_once in (("at least once", False), ("exactly once", True)):
            latency = worker_latency.measure_latency(bootstrap, rate, seconds, exactly_once)
            _print_measurement(
                style,
                f"tree latency, {name}, {rate:,} records/s, {latency.records:,} records: "
                f"p50 {latency.p50_ms:.1f} ms, p99 {latency.p99_ms:.1f} ms, max {latency.max_ms:.1f} ms, "
                f"{latency.failed} failed",
                latency._asdict() | {"exactly_once": exactly_once, "rate_per_s": rate},
            )


def _print_machine(style: str) -> None:
    about = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    _print_measurement(
        style, f"machine: {about['cores']} cores, {about['machine']}, Python {about['python']}", about
    )


def _print_measurement(style: str, text: str, figures: dict[str, Any]) -> None:
    """Print one measurement: a sentence, or one JSON object a line."""
    click.echo(json.dumps(figures) if style == "json" else text)
