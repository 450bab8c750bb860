"""Which execution and which collector each kind of bolt gets.

Invariant: only an exactly-once bolt that may ack in any order gets the transactional collector; the others
are done with a tuple before the next commit.
"""

import inspect

from acktree.producers.arrow import ArrowBolt, ArrowExecution
from acktree.producers.bolt import AnyBolt, AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.collector import Collector
from acktree.producers.errors import BadHandler
from acktree.producers.kafka.intake import CheckError, Intake
from acktree.producers.loading import check_written
from acktree.producers.worker.async_execution import AsyncExecution
from acktree.producers.worker.batch_sizing import Turn
from acktree.producers.worker.execution import (
    BasicExecution,
    Execution,
    FindHand,
    HandExecution,
    ListExecution,
)
from acktree.producers.worker.transactional import TransactionalCollector

BOLTS: tuple[type[AnyBolt], ...] = (BasicBolt, Bolt, BatchBolt, ArrowBolt, AsyncBolt)


def check_bolt(bolt: AnyBolt) -> None:
    """Raise BadHandler for a bolt without execute, or with one that is async where it must not be."""
    check_written(bolt, BOLTS, "execute")
    kind, is_async = type(bolt).__name__, inspect.iscoroutinefunction(type(bolt).execute)  # type: ignore[attr-defined]
    if is_async and not isinstance(bolt, AsyncBolt):
        raise BadHandler(f"{kind}.execute is async, but would never be awaited: subclass AsyncBolt")
    if isinstance(bolt, AsyncBolt) and not is_async:
        raise BadHandler(f"{kind}.execute cannot be awaited: write async def execute, or subclass BasicBolt")


def collector_of(bolt: AnyBolt, exactly_once: bool) -> type[Collector]:
    """Return the collector for a bolt's kind."""
    return TransactionalCollector if exactly_once and isinstance(bolt, Bolt | AsyncBolt) else Collector


def make_execution(
    bolt: AnyBolt,
    collector: Collector,
    intake: Intake,
    check: CheckError,
    hand: FindHand,
    turn: Turn | None = None,
) -> Execution:
    """Return the execution for a bolt's kind; without ``turn`` its turns have no time limit."""
    turn = turn or Turn()
    if isinstance(bolt, BasicBolt):
        return BasicExecution(bolt, collector, intake, check, turn)
    if isinstance(bolt, BatchBolt):
        return ListExecution(bolt, collector, intake, check, turn)
    if isinstance(bolt, ArrowBolt):
        return ArrowExecution(bolt, collector, intake, check, turn)
    if isinstance(bolt, AsyncBolt):
        return AsyncExecution(bolt, collector, intake, check, hand, turn)
    assert isinstance(bolt, Bolt), bolt
    return HandExecution(bolt, collector, intake, check, hand, turn)
