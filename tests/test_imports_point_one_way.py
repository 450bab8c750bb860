"""What `make check` cannot see of imports; import-linter, in pyproject.toml, has the layers themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
ROOTS = {
    "wire": HOUSE / "schemas",
    "core": HOUSE / "schemas",
    "producers": HOUSE / "producers",
    "acker": HOUSE / "acker_consumer",
    "spark": HOUSE / "spark_app",
    "console": HOUSE / "console",
    "testing": HOUSE / "testing",
}
IN_ANOTHER_PYTHON = {
    "rival.py": "pyspark",
    "peers/bytewax_flow.py": "bytewax",
    "peers/faststream_app.py": "faststream",
    "peers/plain_loop.py": "confluent_kafka",
    "peers/quix_app.py": "quixstreams",
}
"""Scripts of the benchmarks for interpreters without acktree, and what each measures."""
MODULES = [
    path for package, root in ROOTS.items() for path in sorted((root / "acktree" / package).rglob("*.py"))
]


def hidden_imports(source: str) -> Iterator[str]:
    """Yield the imports that name no module: of the namespace as a whole, and by a string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name == "acktree")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def test_no_import_is_hidden():
    found = {str(path.relative_to(HOUSE)): list(hidden_imports(path.read_text("utf-8"))) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import acktree",
        "def late():\n    import acktree as a",
        "import importlib\nimportlib.import_module('acktree.producers.ledger.partitions.partition')",
        "from importlib import import_module\nimport_module('pyspark.sql')",
        "__import__('acktree.acker')",
    ],
)
def test_a_hidden_import_is_found(source):
    assert list(hidden_imports(source)) != []


def test_an_import_that_import_linter_sees_is_not_hidden():
    assert list(hidden_imports("import acktree.wire.codec\nimport acktree_other\nload('a')")) == []


def test_each_peer_is_a_script_for_another_python():
    found = {f"peers/{path.name}" for path in (HOUSE / "benchmarks" / "peers").glob("*.py")}
    assert found == IN_ANOTHER_PYTHON.keys() - {"rival.py"}


@pytest.mark.parametrize(("script", "measured"), IN_ANOTHER_PYTHON.items())
def test_a_script_for_another_python_imports_nothing_of_acktree(script: str, measured: str):
    benchmarks = HOUSE / "benchmarks"
    nodes = list(ast.walk(ast.parse((benchmarks / script).read_text("utf-8"))))
    names = {
        alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    origins = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names |= {(node.module or "").split(".")[0] for node in origins}
    assert measured in names
    assert [node.lineno for node in origins if node.level] == []
    assert names & {"acktree", *(path.stem for path in benchmarks.rglob("*.py"))} == set()


@pytest.mark.parametrize(("package", "root"), ROOTS.items(), ids=ROOTS)
def test_the_namespace_has_no_init(package, root):
    assert [entry.name for entry in (root / "acktree").iterdir() if entry.suffix == ".py"] == []
    assert (root / "acktree" / package / "__init__.py").exists()
