"""Runs whole topologies without Kafka, in virtual time: see docs/testing.md.

Invariant: importing this imports nothing of the extra ``testing``; using it does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acktree.core.errors import how_to_install

if TYPE_CHECKING:
    from acktree.testing.faults import MOMENTS, Fault
    from acktree.testing.results import FailedRecord, TopicRecord
    from acktree.testing.spark.spark_stage import StageRow
    from acktree.testing.tester import TopologyTester

__all__ = ["MOMENTS", "FailedRecord", "Fault", "StageRow", "TopicRecord", "TopologyTester"]

_HOMES = {
    "MOMENTS": "faults",
    "FailedRecord": "results",
    "Fault": "faults",
    "StageRow": "spark.spark_stage",
    "TopicRecord": "results",
    "TopologyTester": "tester",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("acktree"):
            raise
        raise ModuleNotFoundError(
            f"acktree.testing needs {missing.name!r}; install it with: {how_to_install('testing')}",
            name=missing.name,
        ) from missing
