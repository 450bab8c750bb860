"""Try the mutants of a cosmic-ray session: everything is imported once, and each mutant gets a fork of that.

Invariant: a mutant has survived only if every test of mutation.toml passed on it, in a process of its own.
The kernels run as Python where they are mutated and as machine code elsewhere. A test is limited in CPU time,
so a loop without end is killed on a busy machine as on an idle one. No source on the disk is changed.
"""

import gc
import importlib
import os
import resource
import shlex
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from difflib import unified_diff
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult
from hypothesis import settings

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
TESTS = Path(__file__).parents[1]
PACKAGE = "acktree.acker"
KERNELS = [f"{PACKAGE}.kernels.{name}" for name in ("slots", "finished_roots", "fold", "sweep")]
MEMORY_BYTES = 4 << 30
LINES_KEPT = 12


class Round(NamedTuple):
    """How many examples a property may try at most, and how long a test may take."""

    examples: int
    test_cpu_s: int


FIRST, SECOND = Round(examples=8, test_cpu_s=5), Round(examples=50, test_cpu_s=15)


class Mutant(NamedTuple):
    """A module with one change; ``line`` is the changed line, by which a mutant is declared equivalent."""

    name: str
    path: Path
    source: str
    diff: str
    line: str


def mutant_of(item: WorkItem) -> Mutant:
    """Return what cosmic-ray makes of a module."""
    (spec,) = item.mutations
    before = spec.module_path.read_text()
    after = mutate_code(before, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)
    assert after is not None, spec
    diff = [
        *unified_diff(before.splitlines(), after.splitlines(), str(spec.module_path), "mutant", "", "", 1, "")
    ]
    line = " ".join(text[1:].strip() for text in diff[2:] if text.startswith("+"))
    return Mutant(spec.module_path.stem, spec.module_path, after, "\n".join(diff), line)


class MutantLoader(SourceFileLoader):
    """Loads a mutant where its module's file would be loaded."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path))
        self._source = mutant.source

    def get_code(self, _name):
        return self.source_to_code(self._source, self.path)


class CpuLimit:
    """A pytest plugin: SIGPROF ends the process when one test takes longer."""

    def __init__(self, test_cpu_s: int) -> None:
        self._test_cpu_s = test_cpu_s

    def pytest_runtest_logstart(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._test_cpu_s)


def limit_examples(most: int) -> None:
    """Let no property try more examples: what only a rare one shows deserves a test of its own."""
    initialize = settings.__init__

    def fewer(self, *arguments, **named) -> None:
        if "max_examples" in named:
            named["max_examples"] = min(named["max_examples"], most)
        initialize(self, *arguments, **named)

    settings.__init__ = fewer


def module_name(path: Path) -> str:
    """Return the name under which a file of the package is imported."""
    parts = path.with_suffix("").parts
    return ".".join(parts[len(parts) - 1 - parts[::-1].index("acktree") :])


def load(mutant: Mutant) -> None:
    """Import a mutant in place of its module."""
    name, codec = module_name(mutant.path), importlib.import_module("acktree.wire.batch_codec")
    compiled = codec.compiled
    if name in KERNELS:
        for kernel in KERNELS:
            del sys.modules[kernel]
        codec.compiled = lambda function: function
    spec = importlib.util.spec_from_file_location(name, mutant.path, loader=MutantLoader(name, mutant))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setattr(sys.modules[name.rpartition(".")[0]], mutant.name, module)
    if name in KERNELS:
        for kernel in KERNELS:
            importlib.import_module(kernel)
    codec.compiled = compiled


def start(mutant: Mutant, tests: list[str], limits: Round, output: IO[bytes]) -> int:
    """Fork a process that exits with what pytest returns; return its process id."""
    if child := os.fork():
        return child
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        limit_examples(limits.examples)
        load(mutant)
        code = pytest.main(tests, plugins=[CpuLimit(limits.test_cpu_s)])
    finally:
        sys.stdout.flush()
        os._exit(code)


def result_of(mutant: Mutant, status: int, output: IO[bytes]) -> WorkResult:
    """Return the session's record of a finished process."""
    with output:
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()[-LINES_KEPT:]
    outcome = TestOutcome.SURVIVED if status == 0 else TestOutcome.KILLED
    return WorkResult(
        WorkerOutcome.NORMAL, "\n".join([f"wait status {status}", *lines]), outcome, mutant.diff
    )


def run(session: WorkDB, left: list[WorkItem], tests: list[str], limits: Round, jobs: int) -> None:
    """Try mutants, some of them at the same time."""
    running = {}
    while left or running:
        if left and len(running) < jobs:
            item = left.pop()
            mutant, output = mutant_of(item), tempfile.TemporaryFile()  # noqa: SIM115
            running[start(mutant, tests, limits, output)] = item, mutant, output
            continue
        child, status = os.wait()
        item, mutant, output = running.pop(child)
        result = result_of(mutant, status, output)
        session.set_result(item.job_id, result)
        ahead = len(left) + len(running)
        print(f"{ahead:4} left  {result.test_outcome.value:8}  {mutant.name:9}  {mutant.line}", flush=True)


def pass_without_a_mutation(tests: list[str]) -> bool:
    """Return whether the tests pass on the sources as they are, with the kernels run as Python."""
    path = Path(sys.modules[KERNELS[0]].__file__)
    with tempfile.TemporaryFile() as output:
        child = start(Mutant(path.stem, path, path.read_text(), "", ""), tests, FIRST, output)
        return os.waitpid(child, 0)[1] == 0


def survivors(session: WorkDB) -> Iterator[tuple[WorkItem, Mutant]]:
    """Yield the mutants that no test has killed."""
    for item, result in session.completed_work_items:
        if result.test_outcome == TestOutcome.SURVIVED:
            yield item, mutant_of(item)


def is_equivalent(item: WorkItem, mutant: Mutant, reasons: dict[str, dict[str, dict[str, str]]]) -> bool:
    """Return whether EQUIVALENT says why a mutant changes nothing; ``*`` stands for a function as a whole."""
    lines = reasons.get(mutant.name, {}).get(item.mutations[0].definition_name or "module", {})
    return mutant.line in lines or "*" in lines


def report(session: WorkDB) -> int:
    """Print the survivors and the sums; return how many survivors are not declared equivalent."""
    reasons = tomllib.loads(EQUIVALENT.read_text())
    outcomes = {item.job_id: "killed" for item in session.work_items}
    for item, mutant in survivors(session):
        outcomes[item.job_id] = "equivalent" if is_equivalent(item, mutant, reasons) else "survived"
        if outcomes[item.job_id] == "survived":
            print(mutant.diff, end="\n\n")
    sums: dict[str, Counter[str]] = {}
    for item, result in session.completed_work_items:
        if result.worker_outcome == WorkerOutcome.NORMAL:
            sums.setdefault(item.mutations[0].module_path.stem, Counter())[outcomes[item.job_id]] += 1
    for name, counts in [*sorted(sums.items()), ("all", sum(sums.values(), Counter()))]:
        kinds = "  ".join(f"{counts[kind]:4} {kind}" for kind in ("killed", "equivalent", "survived"))
        print(f"{name:10} {counts.total():4} mutants  {kinds}")
    return counts["survived"]


def main() -> None:
    """Try the mutants without a result on few examples, then the survivors on more; see the Makefile."""
    path, config, jobs = sys.argv[1:]
    tests = shlex.split(tomllib.loads(Path(config).read_text())["cosmic-ray"]["test-command"])[3:]
    importlib.import_module(f"{PACKAGE}.warm_up").warm_up()
    assert pytest.main([*tests, "--collect-only", "-qq"]) == 0
    for name, module in list(sys.modules.items()):
        is_test = (getattr(module, "__file__", None) or "").startswith(str(TESTS)) and name != "__main__"
        is_kernel = name.startswith(f"{PACKAGE}.kernels")
        if is_test or (name.startswith(f"{PACKAGE}.") and not is_kernel):
            del sys.modules[name]
    gc.freeze()
    if not pass_without_a_mutation(tests):
        sys.exit("The tests fail without a mutation: run the test-command of mutation.toml.")
    with use_db(path, WorkDB.Mode.open) as session:
        run(
            session, sorted(session.pending_work_items, key=lambda item: item.job_id), tests, FIRST, int(jobs)
        )
        run(session, [item for item, _ in survivors(session)], tests, SECOND, int(jobs))
        sys.exit(report(session) > 0)


if __name__ == "__main__":
    main()
