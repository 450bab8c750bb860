"""What single native parts buy: each is switched off alone, in separate processes, in turn with all on.

    python benchmarks/native.py PART [-b HOST:PORT] [--rounds 3] [--records 1000000]
                                     [--pipeline line-split] [--tasks CORES]

PART is `columns`, `batches` or `fold` (a tracked query of a warm Spark, its acker included),
`daemon` or `home` (a local Spark from its start to the end of its first batch, one task a partition; without
the archive of its classes), or `prefetch` (the fold of the acker alone).

CPU leaves out the broker, and in a start also that of the acker. Figures are medians over the rounds.
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
from spark_rates import PIPELINES, OwnSpark, filled


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("part", choices=(*WITHOUT, *MODULES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--pipeline", choices=PIPELINES, default=PIPELINES[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--child", choices=("with", "without"), help="be a process that is measured")
    parser.add_argument("--source", default="", help="its topic")
    asked = parser.parse_args()
    if asked.child:
        os.cpu_count = lambda: asked.tasks
        if asked.child == "without" and asked.part in WITHOUT:
            WITHOUT[asked.part]()
        print(json.dumps(measure(asked)))
        return
    with cluster(asked) as kafka, ExitStack() as running:
        if asked.part != "prefetch":
            asked.source = running.enter_context(filled(kafka, asked.records, asked.tasks))
        folders = {
            child: Path(running.enter_context(tempfile.TemporaryDirectory())) for child in ("with", "without")
        }
        kinds = {
            child: partial(run_child, asked, kafka.bootstrap, child, folder)
            for child, folder in folders.items()
        }
        runs = in_turn(kinds, asked.rounds)
    columns = [name for name in runs["with"][0] for name in (name, "min", "max")]
    table = Table("process", *columns)
    for child, of_child in runs.items():
        figures = [spread([run[name] for run in of_child]) for name in of_child[0]]
        table.row(f"{child} {asked.part}", *(each for figure in figures for each in figure))


def run_child(asked: Any, bootstrap: str, child: str, folder: Path) -> dict[str, float]:
    words = ["-b", bootstrap, asked.part, "--child", child, "--source", asked.source]
    for name in ("tasks", "records", "pending", "pipeline"):
        words += [f"--{name}", getattr(asked, name)]
    figures: dict[str, float] = run_script(
        __file__, *words, environment=environment(asked.part, child, folder)
    )
    return figures


def environment(part: str, child: str, folder: Path) -> dict[str, str]:
    """Return what a process that is measured, and all that it starts, find in their environment."""
    if part == "prefetch":  # compiled code of a patched kernel must not be taken for that of the kernel
        return {"NUMBA_CACHE_DIR": str(folder)}
    if part not in MODULES:  # an archive of classes belongs to one home
        return {"XDG_CACHE_HOME": str(folder)}
    if child == "without":
        absent = f"import sys\nsys.modules[{MODULES[part]!r}] = None\n"
        (folder / "sitecustomize.py").write_text(absent)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def measure(asked: Any) -> dict[str, float]:
    if asked.part == "prefetch":
        from acker_fold import measure_fold  # once the kernels are as asked for

        return {"CPU s a million events": 1e6 / measure_fold(asked.pending).table_per_s}
    with TreeClock(os.getpid()) as clock:
        own = OwnSpark(Cluster(asked.bootstrap), asked.source, asked.records, clock)
        if asked.part in MODULES:
            own.tracked(asked.pipeline)  # the JVM compiles its code
            return {"CPU s a million records": own.tracked(asked.pipeline).cpu_s / asked.records * 1e6}
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
    """Name the daemon that Spark has itself."""
    from acktree.spark import app

    app._SESSION["spark.python.daemon.module"] = "pyspark.daemon"


def without_home() -> None:
    """Name the home that Spark would find by itself."""
    import pyspark

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)


WITHOUT = {"prefetch": without_prefetch, "daemon": without_daemon, "home": without_home}
MODULES = {
    "columns": "acktree.spark.native.consume_loop",
    "batches": "aiokafka",
    "fold": "acktree.producers.collecting.arithmetic.fold_loop",
}
"""What cannot be imported without a part."""

if __name__ == "__main__":
    main()
