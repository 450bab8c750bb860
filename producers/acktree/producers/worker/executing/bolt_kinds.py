"""Maps a bolt to its name in the topology, and its kind to an execution and a collector.

Invariant: only an exactly-once bolt that may ack in any order gets the transactional collector; the others
are done with a tuple before the next commit.
"""

import inspect
import math

from acktree.core.kafka.settings import Settings
from acktree.core.reports.liveness import Liveness
from acktree.core.topology.file import BoltTable
from acktree.core.topology.registry import Registry
from acktree.core.user_code import load_callable
from acktree.producers.bolt import AnyBolt, AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.transactional import TransactionalCollector
from acktree.producers.errors import BadHandler, UnknownComponent
from acktree.producers.loading import check_plain, check_written
from acktree.producers.serdes.payloads import Payloads, find_serdes
from acktree.producers.worker.executing.async_execution import AsyncExecution
from acktree.producers.worker.executing.batch_execution import BatchExecution
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.execution import Execution, FindHand, SyncExecution
from acktree.producers.worker.executing.intake import AnchorSource
from acktree.producers.worker.executing.threaded_execution import PutBack, ThreadedExecution
from acktree.producers.worker.executing.tuple_execution import BasicExecution, HandExecution

BOLTS: tuple[type[AnyBolt], ...] = (BasicBolt, Bolt, BatchBolt, AsyncBolt)
ORDERS = ("any", "key")
SYNC_METHODS = ("prepare", "execute", "tick", "timed_out", "drop", "cleanup")


def check_bolt(bolt: AnyBolt) -> None:
    """Raise BadHandler for a bolt without execute, or with a method that a call of it would not run."""
    check_written(bolt, BOLTS, "execute")
    kind, is_async = type(bolt).__name__, inspect.iscoroutinefunction(type(bolt).execute)  # type: ignore[attr-defined]
    if is_async and not isinstance(bolt, AsyncBolt):
        raise BadHandler(f"{kind}.execute is async, but would never be awaited: subclass AsyncBolt")
    if isinstance(bolt, AsyncBolt) and not is_async:
        raise BadHandler(f"{kind}.execute cannot be awaited: write async def execute, or subclass BasicBolt")
    if isinstance(bolt, AsyncBolt) and bolt.order not in ORDERS:
        raise BadHandler(f"{kind}.order must be one of {', '.join(ORDERS)}, not {bolt.order!r}")
    if not isinstance(bolt, AsyncBolt):
        check_plain(bolt, SYNC_METHODS)
    find_serdes(bolt.reads_as, f"{kind}.reads_as")
    find_serdes(bolt.emits_as, f"{kind}.emits_as")
    never = bolt.never_retry
    if not isinstance(never, tuple) or not all(map(_is_exception, never)):
        raise BadHandler(f"{kind}.never_retry must be a tuple of exception classes, not {never!r}")


def configure(collector: Collector, bolt: AnyBolt, table: BoltTable, name: str, user: Settings) -> None:
    """Give a collector what the bolt's class and its table in the topology declare.

    Raises:
        BadHandler: a declaration does not fit the topology, or cannot be loaded.
        MissingExtra, RefusedSetting: a Serde cannot be opened.
    """
    collector.retry_rules.never = find_never_retried(bolt, table, name)
    for what, theirs in (("reads", table.reads), ("emits", table.emits)):
        mine = getattr(type(bolt), what)  # of the class: an instance may have an attribute of that name
        if mine and set(mine) != set(theirs):
            own, given = ", ".join(mine), ", ".join(theirs) or "nothing"
            raise BadHandler(f"{type(bolt).__name__} {what} {own}, but {name} of the topology {what} {given}")
    reads = find_serdes(bolt.reads_as, f"{type(bolt).__name__}.reads_as", table.reads)
    emits = find_serdes(bolt.emits_as, f"{type(bolt).__name__}.emits_as", table.emits)
    if reads or emits:
        collector.payloads = Payloads(reads, emits, user)
        collector.payloads.raise_fatal = collector.children.raise_fatal


def find_execute_timeout(bolt: AnyBolt, table: BoltTable, name: str) -> float:
    """Return how long ``execute`` may take, 0 for no limit. Raises BadHandler for an invalid time."""
    if table.execute_timeout_s is not None:
        return table.execute_timeout_s
    own: object = bolt.execute_timeout_s
    if isinstance(own, bool) or not isinstance(own, int | float) or not 0 <= own < math.inf:
        raise BadHandler(
            f"{type(bolt).__name__}.execute_timeout_s of bolt {name} must be a number of seconds, or 0 for "
            f"no limit, not {own!r}"
        )
    return float(own)


def _is_exception(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Exception)


def find_never_retried(bolt: AnyBolt, table: BoltTable, name: str) -> tuple[type[Exception], ...]:
    """Return the exceptions that the bolt's class and its table in the topology say are never retried.

    Raises:
        BadHandler: a name in the table is not an exception class that can be imported.
    """
    found = list(bolt.never_retry)
    for place in table.never_retry:
        module, _, attribute = place.rpartition(".")
        key = f"bolts.{name}.never_retry"
        try:
            made = load_callable(f"{module}:{attribute}", "MODULE.NAME", "builtins.ValueError", BadHandler)
        except BadHandler as error:
            raise BadHandler(f"{key}: {place!r} was not found: {error}") from error
        if not _is_exception(made):
            raise BadHandler(f"{key}: {place!r} is {made!r}, not an exception class")
        found.append(made)
    return tuple(found)


def find_bolt_name(registry: Registry, bolt: AnyBolt, wanted: str | None) -> str:
    """Return the bolt's name in the topology: ``wanted``, its class's ``name``, or the only bolt.

    Raises:
        UnknownComponent: the topology has no such bolt, or several to choose from.
    """
    latest = registry.history.latest
    name = wanted or bolt.name
    if not name and len(latest.bolts) == 1:
        return next(iter(latest.bolts))
    if name in latest.bolts:
        return name
    existing = ", ".join(latest.bolts) or "none"
    if not name:
        raise UnknownComponent(f"topology {latest.name} has several bolts, name one with --bolt: {existing}")
    raise UnknownComponent(f"topology {latest.name} has no bolt {name!r}; it has: {existing}")


def collector_of(bolt: AnyBolt, exactly_once: bool) -> type[Collector]:
    """Return the collector for a bolt's kind."""
    return TransactionalCollector if exactly_once and isinstance(bolt, Bolt | AsyncBolt) else Collector


def in_a_thread(
    execution: Execution, collector: Collector, turn: Turn, put_back: PutBack, progress: Liveness
) -> Execution:
    """Return what runs a bolt next to its caller: an AsyncBolt's execution does so itself."""
    if isinstance(execution, SyncExecution):
        return ThreadedExecution(execution, collector, turn, put_back, progress)
    return execution


def make_execution(
    bolt: AnyBolt,
    collector: Collector,
    intake: AnchorSource,
    hand: FindHand,
    turn: Turn | None = None,
    *,
    exactly_once: bool = False,
) -> Execution:
    """Return the execution for a bolt's kind; without ``turn`` its turns have no time limit."""
    turn = turn or Turn()
    if isinstance(bolt, BasicBolt):
        return BasicExecution(bolt, collector, intake, turn, exactly_once=exactly_once)
    if isinstance(bolt, BatchBolt):
        return BatchExecution(bolt, collector, intake, hand, turn, exactly_once=exactly_once)
    if isinstance(bolt, AsyncBolt):
        return AsyncExecution(bolt, collector, intake, hand, turn)
    assert isinstance(bolt, Bolt), bolt
    return HandExecution(bolt, collector, intake, hand, turn)
