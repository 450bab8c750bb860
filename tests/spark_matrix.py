"""What holds on which Spark: runs the tests of each column of the matrix in docs/spark.md on each version.

    python tests/spark_matrix.py --folder .spark-matrix [--version 4.0 …] [--column cap …] [--docs]

Each version has an environment of its own, made of the extra ``test`` of pyproject.toml with the newest
PySpark of that minor version. A cell says how many tests passed; one failure, or no test at all, and the
program ends with status 1. ``--docs`` writes the table into the page.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "spark.md"
BEGIN, END = "<!-- spark-matrix: begin -->\n", "<!-- spark-matrix: end -->\n"
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
STAGE, CRASHES = "tests/spark/test_stage.py::", "tests/spark/test_stage_crashes.py::"
NOW = "tests/spark/test_available_now.py::"
COLUMNS = {
    "source": (
        "tests/spark/test_source.py",
        "tests/spark/test_reader.py",
        "tests/spark/test_driver_crashes.py",
        "tests/spark/test_source_changes.py",
    ),
    "stage, one pass": (
        f"{STAGE}test_every_root_has_one_init_and_records_without_rows_are_done",
        f"{STAGE}test_only_a_failed_record_is_processed_again",
        f"{STAGE}test_a_second_run_continues_where_the_first_ended",
        f"{STAGE}test_only_plans_that_keep_a_records_rows_together_are_narrow",
        f"{CRASHES}test_a_narrow_batch_whose_driver_was_killed_is_written_exactly_once",
        f"{CRASHES}test_a_task_that_was_killed_in_a_narrow_batch_writes_exactly_once",
        "tests/spark/test_whole_input.py::test_a_function_that_raises_once_half_way_loses_no_record_and_writes_"
        "none_twice",
    ),
    "stage, two passes": (
        f"{STAGE}test_a_root_with_rows_in_several_shuffled_outputs_has_one_init",
        f"{STAGE}test_a_tuple_anchored_to_several_roots_closes_all_of_them",
        f"{STAGE}test_a_joined_row_belongs_to_the_tree_of_each_of_its_records",
        f"{CRASHES}test_an_interrupted_shuffled_batch_is_replayed_immediately",
    ),
    "`available-now`": (
        f"{NOW}test_a_first_batch_that_fails_half_way_is_run_again_and_the_rest_is_done",
        f"{NOW}test_records_left_by_sparks_own_trigger_are_done_by_the_next_run",
        f"{NOW}test_a_checkpoint_that_spark_reports_too_late_never_skips_records",
    ),
    "cap": (
        f"{NOW}test_all_records_are_done_in_capped_batches_even_if_one_fails_at_first",
    ),
    "bolt": (
        f"{STAGE}test_a_bolts_stage_acks_its_tuples_with_or_without_rows_and_fails_rejected_ones",
        f"{NOW}test_a_bolt_in_spark_ends_when_it_has_acked_all_its_tuples",
    ),
    "sink": ("tests/spark/test_declared_plan.py", "tests/spark/test_declared_refusals.py"),
    "Connect, its server killed": ("tests/spark/test_connect.py",),
    "words counted, a process killed": (
        "tests/test_end_to_end.py::test_counts_are_exact_whichever_process_is_killed",
    ),
}  # fmt: skip
"""By column the tests that fill its cells."""


def make_environment(folder: Path, version: str) -> Path:
    """Return the Python of an environment with the newest PySpark of a minor version."""
    python = folder / version / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / version], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*install, f"pyspark=={version}.*", "--editable", f"{ROOT}[test]"], check=True)
    return python


def spark_of(python: Path) -> str:
    """Return the version of PySpark that a Python finds."""
    code = "import pyspark; print(pyspark.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def run_tests(python: Path, columns: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Run the tests of columns in one process; return by column how many passed, and how many did not."""
    tests = {column: COLUMNS[column] for column in columns}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [python, "-m", "pytest", "-n0", "-p", "no:cacheprovider", f"--junitxml={report}"]
        every = [test for column in tests.values() for test in column]
        subprocess.run([str(part) for part in [*command, *every]], cwd=ROOT, check=False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    return {column: count(cases, names) for column, names in tests.items()}


def count(cases: Iterable[ElementTree.Element], tests: Iterable[str]) -> tuple[int, int]:
    """Return how many cases of the tests passed, and how many did not."""
    passed = others = 0
    for case in cases:
        module, name = case.get("classname", "").split("."), case.get("name", "").partition("[")[0]
        if {path := "/".join(module) + ".py", f"{path}::{name}"} & set(tests):
            is_passed = all(part.tag.startswith("system-") for part in case)
            passed, others = passed + is_passed, others + (not is_passed)
    return passed, others


def table(cells: dict[str, dict[str, tuple[int, int]]]) -> str:
    """Return the matrix: a line for each version, in each cell how many tests passed."""
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    lines = [f"| PySpark | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for version, row in cells.items():
        texts = [cell_text(*row[column]) for column in columns]
        lines.append(f"| {version} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def cell_text(passed: int, others: int) -> str:
    """Return what a cell says.

    >>> cell_text(7, 0), cell_text(7, 1), cell_text(0, 0)
    ('7 passed', '7 passed, 1 not', 'not run')
    """
    if not passed + others:
        return "not run"
    return f"{passed} passed" + (f", {others} not" if others else "")


def write_page(text: str) -> None:
    """Write the table into the page, between its marks."""
    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".spark-matrix", help="where environments are kept"
    )
    parser.add_argument("--version", action="append", choices=VERSIONS, help="default: all; repeatable")
    parser.add_argument("--column", action="append", choices=list(COLUMNS), help="default: all; repeatable")
    parser.add_argument(
        "--python", type=Path, action="append", help="an environment that is there; repeatable"
    )
    parser.add_argument("--docs", action="store_true", help="write the table into docs/spark.md")
    arguments = parser.parse_args()
    pythons = arguments.python or [
        make_environment(arguments.folder.absolute(), version) for version in arguments.version or VERSIONS
    ]
    cells: dict[str, dict[str, tuple[int, int]]] = {}
    for python in pythons:
        cells[spark_of(python)] = run_tests(python, arguments.column or COLUMNS)
        print(table(cells), flush=True)
    if arguments.docs:
        write_page(table(cells))
    is_good = all(passed and not others for row in cells.values() for passed, others in row.values())
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
