"""Imports point one way: schemas ← producers ← spark; schemas ← acker; everything ← console ← testing.

Read from the sources, so an import inside a function counts as one at the top.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
ROOTS = {
    "schemas": HOUSE / "schemas",
    "producers": HOUSE / "producers",
    "acker": HOUSE / "acker_consumer",
    "spark": HOUSE / "spark_app",
    "console": HOUSE / "console",
    "testing": HOUSE / "testing",
}
MAY_IMPORT = {
    "schemas": {"schemas"},
    "producers": {"schemas", "producers"},
    "acker": {"schemas", "acker"},
    "spark": {"schemas", "producers", "spark"},
    "console": {"schemas", "producers", "acker", "spark", "console"},
    "testing": {"schemas", "producers", "acker", "spark", "console", "testing"},
}
IN_ANOTHER_PYTHON = HOUSE / "benchmarks" / "rival.py"
"""A script for an interpreter that has another PySpark and nothing of acktree."""
MODULES = [
    (package, path)
    for package, root in ROOTS.items()
    for path in sorted((root / "acktree" / package).rglob("*.py"))
]


def imports(source: str, module: str) -> Iterator[str]:
    """Yield the dotted name of everything a module imports, relative imports resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def wrong_imports(source: str, package: str, module: str) -> list[str]:
    """Return the imports of a module that point the wrong way."""
    wrong = []
    for name in imports(source, module):
        top, *below = name.split(".")
        if top == "acktree" and (not below or below[0] not in MAY_IMPORT[package]):
            wrong.append(name)
        if top == "pyspark" and package not in ("spark", "testing"):
            wrong.append(name)
    return wrong


def test_imports_of_every_module_point_one_way():
    wrong = {}
    for package, path in MODULES:
        module = ".".join(path.relative_to(ROOTS[package]).with_suffix("").parts)
        if found := wrong_imports(path.read_text("utf-8"), package, module):
            wrong[str(path.relative_to(HOUSE))] = found
    assert wrong == {}


def test_a_script_for_another_python_imports_nothing_of_acktree():
    names = {name.split(".")[0] for name in imports(IN_ANOTHER_PYTHON.read_text("utf-8"), "rival")}
    assert "pyspark" in names
    assert names & {"acktree", *(path.stem for path in IN_ANOTHER_PYTHON.parent.glob("*.py"))} == set()


def test_every_package_is_checked():
    assert {package for package, _ in MODULES} == set(ROOTS)


@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
def test_the_namespace_has_no_init(root):
    assert not (root / "acktree" / "__init__.py").exists()
    assert [entry.name for entry in (root / "acktree").iterdir() if entry.suffix == ".py"] == []


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("schemas", "import acktree.producers.collecting.collector"),
        ("schemas", "from acktree import acker"),
        ("schemas", "import acktree"),
        ("producers", "def late():\n    from acktree.spark.ledger.partition import Ledger"),
        ("producers", "from acktree.acker import table"),
        ("acker", "from acktree.producers.collecting.packing import Packer"),
        ("acker", "class A:\n    def f(self):\n        import acktree.console.main as m"),
        ("spark", "from acktree.acker.table import Table"),
        ("spark", "if TYPE_CHECKING:\n    from acktree.console import broker"),
        ("producers", "from ..spark import ledger"),
        ("acker", "import importlib\nimportlib.import_module('acktree.spark.ledger.partition')"),
        ("console", "import pyspark.sql"),
        ("producers", "def late():\n    from pyspark.sql import DataFrame"),
    ],
)
def test_a_wrong_import_is_found(package, source):
    assert wrong_imports(source, package, f"acktree.{package}.module") != []


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("producers", "from acktree.schemas.ids import mix"),
        ("producers", "from . import packing\nfrom .packing import Packer\nfrom ..schemas import ids"),
        ("spark", "import pyspark\nfrom acktree.producers.collecting.packing import Packer"),
        ("acker", "import acktree.schemas.codec\nimport acktree_other"),
        ("console", "from acktree.spark import stage\nfrom acktree.acker import service"),
    ],
)
def test_a_correct_import_passes(package, source):
    assert wrong_imports(source, package, f"acktree.{package}.module") == []
