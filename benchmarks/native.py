"""What single native parts buy: each is switched off alone, in processes of their own, in turn with all on.

    python benchmarks/native.py PART [-b HOST:PORT] [--rounds 3] [--tasks CORES] [--records 100000]

PART is `prefetch` (the fold of the acker alone), or `daemon` or `home` (a local Spark from its start to the
end of its first batch, one task a partition). Of a part in columns out of workers: `acktree bench worker
--kinds batch,columns`, with and without `--without-native`, which there switches off nothing else.

CPU leaves out the broker and the acker's start. Figures are medians over the rounds, then each round's ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from acktree.console.benches import spark_stage
from acktree.console.benches.cpu_time import CpuClock
from acktree.console.devbroker.broker import LocalBroker


def main() -> None:
    options = parse_arguments()
    if options.child:
        os.cpu_count = lambda: options.tasks
        if options.child == "without":
            WITHOUT[options.part]()
        print(json.dumps(measure(options)))
        return
    with ExitStack() as running:
        if options.part != "prefetch":
            options.bootstrap = options.bootstrap or running.enter_context(LocalBroker()).bootstrap
            spark_stage.PARTITIONS = options.tasks
            options.source = spark_stage.fill(options.bootstrap, options.records)
            running.callback(spark_stage.drop_topics, options.bootstrap, [options.source])
        # Compiled code of a patched kernel must not be taken for that of the kernel.
        caches = {
            child: running.enter_context(tempfile.TemporaryDirectory()) for child in ("with", "without")
        }
        runs: dict[str, list[dict[str, float]]] = {child: [] for child in caches}
        for _ in range(options.rounds):
            for child, cache in caches.items():
                runs[child].append(run_child(options, child, cache))
                print(child, options.part, runs[child][-1], flush=True)
    for name in runs["with"][0]:
        with_it, without = ([run[name] for run in runs[child]] for child in ("with", "without"))
        ratios = ", ".join(f"{off / on:.2f}" for on, off in zip(with_it, without, strict=True))
        medians = f"{statistics.median(with_it):.2f}, without it {statistics.median(without):.2f}"
        print(f"{name}: with {options.part} {medians}; without / with {ratios}")


def parse_arguments() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=WITHOUT)
    parser.add_argument("-b", "--bootstrap")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--child", choices=("with", "without"))
    parser.add_argument("--source")
    return parser.parse_args()


def run_child(options: Any, child: str, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, options.part, "--child", child]
    for name in ("bootstrap", "source", "tasks", "records", "pending"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", str(value)]
    environment = dict(os.environ)
    if options.part == "prefetch":
        environment["NUMBA_CACHE_DIR"] = cache
    run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def measure(options: Any) -> dict[str, float]:
    if options.part == "prefetch":
        from acktree.console.benches import acker_fold  # once the kernels are as asked for

        fold = acker_fold.measure_fold(options.pending)
        return {"CPU s per million events": round(1e6 / fold.table_per_s, 4)}
    with CpuClock(os.getpid()) as clock:
        own = spark_stage.OwnSpark(options.bootstrap, options.source, options.records, clock)
        started_cpu_s = clock()
        with own.topology(ackers=1) as (name, folder):
            before_cpu_s, before_s = clock(), time.perf_counter()
            own.start("pass-through", name, folder, "available-now").awaitTermination()
            took_s, cpu_s = time.perf_counter() - before_s, clock() - before_cpu_s
    return {
        "CPU s to the end of the first batch": round(started_cpu_s + cpu_s, 2),
        "its wall s": round(took_s, 2),
    }


def without_prefetch() -> None:
    """Have the kernels import a prefetch that does nothing."""
    from acktree.acker.kernels.machine_code import compiled

    def prefetch(array: Any, index: Any) -> None:
        pass

    name = "acktree.acker.kernels.prefetch"
    sys.modules[name] = ModuleType(name)
    sys.modules[name].prefetch = compiled(prefetch)  # type: ignore[attr-defined]


def without_daemon() -> None:
    """Drop the setting that names the daemon."""
    from pyspark.sql import SparkSession

    config = SparkSession.Builder.config

    def other_config(self: Any, key: Any = None, *rest: Any, **others: Any) -> Any:
        return self if key == "spark.python.daemon.module" else config(self, key, *rest, **others)

    SparkSession.Builder.config = other_config  # type: ignore[method-assign]


def without_home() -> None:
    """Name the home that Spark would find by itself."""
    import pyspark

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)


WITHOUT = {"prefetch": without_prefetch, "daemon": without_daemon, "home": without_home}

if __name__ == "__main__":
    main()
