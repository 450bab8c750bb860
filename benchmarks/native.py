"""What single native parts buy: each is switched off alone, in processes of their own, in turn with all on.

    python benchmarks/native.py PART [-b HOST:PORT] [--rounds 3] [--tasks CORES] [--records 100000]

PART is `prefetch` (the fold of the acker alone), or `daemon` or `home` (a local Spark from its start to the
end of its first batch, one task a partition).

CPU leaves out the broker and the acker's start. Figures are medians over the rounds.
"""

import json
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from clock import TreeClock
from harness import Cluster, Table, arguments, cluster, in_turn, run_script, spread


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("part", choices=WITHOUT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--child", choices=("with", "without"), help="be a process that is measured")
    parser.add_argument("--source", default="", help="its topic")
    asked = parser.parse_args()
    if asked.child:
        os.cpu_count = lambda: asked.tasks
        if asked.child == "without":
            WITHOUT[asked.part]()
        print(json.dumps(measure(asked)))
        return
    with cluster(asked) as kafka, ExitStack() as running:
        if asked.part != "prefetch":
            from spark_rates import filled

            asked.source = running.enter_context(filled(kafka, asked.records, asked.tasks))
        # Compiled code of a patched kernel must not be taken for that of the kernel.
        caches = {
            child: running.enter_context(tempfile.TemporaryDirectory()) for child in ("with", "without")
        }
        kinds = {
            child: partial(run_child, asked, kafka.bootstrap, child, cache) for child, cache in caches.items()
        }
        runs = in_turn(kinds, asked.rounds)
    columns = [name for name in runs["with"][0] for name in (name, "min", "max")]
    table = Table("process", *columns)
    for child, of_child in runs.items():
        figures = [spread([run[name] for run in of_child]) for name in of_child[0]]
        table.row(f"{child} {asked.part}", *(each for figure in figures for each in figure))


def run_child(asked: Any, bootstrap: str, child: str, cache: str) -> dict[str, float]:
    words = ["-b", bootstrap, asked.part, "--child", child, "--source", asked.source]
    for name in ("tasks", "records", "pending"):
        words += [f"--{name}", getattr(asked, name)]
    environment = {"NUMBA_CACHE_DIR": cache} if asked.part == "prefetch" else {}
    figures: dict[str, float] = run_script(__file__, *words, environment=environment)
    return figures


def measure(asked: Any) -> dict[str, float]:
    if asked.part == "prefetch":
        from acker_fold import measure_fold  # once the kernels are as asked for

        return {"CPU s a million events": 1e6 / measure_fold(asked.pending).table_per_s}
    from spark_rates import OwnSpark

    with TreeClock(os.getpid()) as clock:
        own = OwnSpark(Cluster(asked.bootstrap), asked.source, asked.records, clock)
        started = clock()
        with own.deployment(ackers=1) as deployment:
            begin = clock()
            own.start("pass-through", deployment, "available-now").awaitTermination()
            batch = clock().since(begin)
    return {"CPU s to the end of the first batch": started.cpu_s + batch.cpu_s, "its wall s": batch.wall_s}


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
