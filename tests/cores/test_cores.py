"""The pure cores: a few hundred seeds of each agree, and a defect is reported with its script."""

import pytest

from acktree.acker.folding.table import Table
from cores.run import CORES, run

SEEDS = range(300)


@pytest.mark.parametrize("name", CORES)
def test_the_core_agrees_with_its_model(name: str):
    count, _, failed = run(name, SEEDS)
    assert failed is None, str(failed)
    assert count == len(range(0, len(SEEDS), CORES[name].every))


def test_a_defect_is_reported_with_the_operations_up_to_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Table, "clear_finished", lambda self: None)
    _, _, failed = run("fold", range(3_000))
    assert failed is not None
    assert "clear_finished" in str(failed)
    assert failed.error.startswith("Mismatch: ")
