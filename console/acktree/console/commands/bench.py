"""`acktree bench acker` and `bench spark`: figures with something to compare them to in the same run."""

import os
import platform
from contextlib import ExitStack

import click

from acktree.console.broker import LocalBroker
from acktree.console.commands.options import client_settings_option, own_broker_option


@click.group()
def bench() -> None:
    """Measure this machine."""


@bench.command()
@own_broker_option
@click.option("--pending", default=1_000_000, show_default=True, help="Roots pending while folding alone.")
@click.option("--acks", default=10_000_000, show_default=True, help="Acks in the backlog of large records.")
@click.option("--memory-roots", default=4_000_000, show_default=True, help="Roots for the memory figure.")
@click.option("--partitions", default="1", show_default=True, help="Acker counts, such as 1,2,4,64.")
@client_settings_option
def acker(
    bootstrap: str | None,
    pending: int,
    acks: int,
    memory_roots: int,
    partitions: str,
    settings: dict[str, str],
) -> None:
    """Measure the acker: fold alone, memory a root, and draining a backlog from Kafka.

    Rates are events a second; where it says CPU, a second of the acker's own processor time.
    """
    from acktree.console.benches import acker_fold, acker_kafka

    click.echo(f"machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    memory = acker_fold.measure_memory(memory_roots)
    click.echo(
        f"memory at {memory_roots:,} pending: {memory.bytes_per_root:.1f} bytes a root, "
        f"longest fold of 100,000 inits while growing {memory.longest_ms:.0f} ms"
    )
    fold = acker_fold.measure_fold(pending)
    click.echo(
        f"fold alone at {pending:,} pending: {fold.table_per_s / 1e6:.1f} M events/CPU s, longest call "
        f"{fold.longest_ms:.0f} ms; plain dict {fold.dict_per_s / 1e6:.1f} M, "
        f"ratio {fold.table_per_s / fold.dict_per_s:.1f}"
    )
    with ExitStack() as running:
        if bootstrap is None:
            bootstrap = running.enter_context(LocalBroker()).bootstrap
        for count in (int(number) for number in partitions.split(",")):
            for per_record, total in ((500, acks), (10, acks // 5)):
                drained = acker_kafka.measure_backlog(bootstrap, total, per_record, 200_000, count, settings)
                click.echo(
                    f"through Kafka, {count} partition(s), {per_record} a record, {drained.acks:,} acks: "
                    f"{drained.per_s / 1e6:.1f} M/s, {drained.per_cpu_s / 1e6:.1f} M/CPU s, "
                    f"folded again by a new owner in {drained.refold_s:.1f} s"
                )


@bench.command()
@own_broker_option
@click.option("--records", default=200_000, show_default=True, help="Records of 100 bytes a run.")
@click.option("--rounds", default=3, show_default=True, help="Measured runs of each kind, in turn.")
def spark(bootstrap: str | None, records: int, rounds: int) -> None:
    """Measure Spark with tracking beside Spark without, start of the query included."""
    from acktree.console.benches import spark_stage

    click.echo(f"machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    with ExitStack() as running:
        if bootstrap is None:
            bootstrap = running.enter_context(LocalBroker()).bootstrap
        source = spark_stage.fill(bootstrap, records)
        for name, transform in spark_stage.transforms().items():
            tracked, untracked = spark_stage.compare(bootstrap, source, records, transform, rounds)
            click.echo(
                f"{name}: tracked {tracked:,.0f} records/s, untracked {untracked:,.0f} records/s, "
                f"ratio {tracked / untracked:.2f}"
            )
