"""Executes a bolt over a whole batch, and again in halves if it raises.

Invariant: a batch's output is sent only once it has returned, so a part of one that raised may be
executed again. Every tuple is done when the batch is; the tuples of one that raised are in hand until their
part is done, so that a commit meanwhile knows which are.
"""

import logging
from collections.abc import Iterable, Sequence

from acktree.core import world
from acktree.producers.bolt import BatchBolt
from acktree.producers.collecting.batch import BatchCollector
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.fails import cut_traceback, place_of
from acktree.producers.errors import Misuse, RetryLater, is_of_tuple, reason_of
from acktree.producers.loading import check_returned
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND, Record, Tuple
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.execution import (
    Chunk,
    FindHand,
    SyncExecution,
    fail,
    read_payload,
)
from acktree.producers.worker.executing.halving import execute_in_halves
from acktree.producers.worker.executing.intake import AnchorSource

log = logging.getLogger("acktree.bolt")

SPLIT_TIMEOUT_S = 10.0
"""After this time since a batch began, no part of it is executed again."""


class BatchExecution(SyncExecution):
    """Executes a whole batch: every tuple is done when ``execute`` returns, so none stays in hand.

    The cost of a batch need not be proportional to its size, so its turns are longer than others. It is one
    call of the bolt, so it ends only when that returns.
    """

    turn_s = 2.0
    min_records = 100

    def __init__(
        self,
        bolt: BatchBolt,
        collector: Collector,
        intake: AnchorSource,
        hand: FindHand,
        turn: Turn,
        *,
        exactly_once: bool = False,
    ) -> None:
        super().__init__(bolt, collector, intake, turn)
        self._bolt, self._find_hand = bolt, hand
        self._batch = BatchCollector(collector, is_sent_whole=exactly_once)
        self._chunk = Chunk((), ())

    def process_weight(self, count: int) -> int:
        """Return how often a run's duration counts as process time: for each tuple of the batch."""
        return count

    def begun(self, chunk: Chunk) -> int:
        """Return how many records the bolt has begun with: all."""
        return len(chunk.records)

    def execute(self, chunk: Chunk) -> None:
        """Execute all records as one batch, and ack the tuples that it did not fail.

        A batch that raises is executed again in halves, down to the tuples that raise alone.
        """
        self._chunk = chunk
        batch = self._read(chunk.records, chunk.anchors)
        self._collector.counters.executed += len(chunk.records)
        if len(batch):
            self._execute(batch)
        chunk.done = len(chunk.records)

    def _read(self, records: Sequence[Record], anchors: Sequence[bytes]) -> TupleBatch:
        """Return a batch of the records whose payload can be read; the others fail."""
        collector = self._collector
        if not collector.payloads.reads:
            return TupleBatch(records, anchors, collector)
        tuples = (Tuple(record, own, collector) for record, own in zip(records, anchors, strict=True))
        return TupleBatch.of([tup for tup in tuples if read_payload(tup, collector)], collector)

    def _execute(self, batch: TupleBatch) -> None:
        """Execute a batch of at least one, and fail the tuples that raise alone."""
        until_s = world.monotonic_s() + SPLIT_TIMEOUT_S
        error = self._try(batch)
        if error is not None and len(batch) > 1 and self._may_split(error):
            lines = self._collector.lines
            if not lines.counts(kind := ("batch", type(error), place_of(error))):
                text = f"a batch of {len(batch)} failed, executing it again in halves: {reason_of(error)}"
                lines.write_first(kind, logging.WARNING, text, {"action": "batch_split"}, exc_info=error)
            self._take_in_hand(batch)
            execute_in_halves(
                batch,
                error,
                lambda part: self._try(TupleBatch.of(part, self._collector)),
                self._fail_all,
                may_split=self._may_split,
                may_go_on=lambda: self._may_go_on(until_s),
                in_hand=lambda tup: tup._state is IN_HAND,
            )
        elif error is not None:
            self._fail_all(batch, error)

    def _may_go_on(self, until_s: float) -> bool:
        return not (self._turn.is_stopped or self._chunk.is_given_up) and world.monotonic_s() < until_s

    def _take_in_hand(self, batch: TupleBatch) -> None:
        """Put the tuples of a batch in hand: from now on each is done on its own."""
        for tup in batch:
            if tup._state is IN_HAND:
                tup._hand = self._find_hand(tup.topic, tup.partition)
                tup._hand[tup.offset] = tup
        self._chunk.done = len(self._chunk.records)

    def _try(self, batch: TupleBatch) -> BaseException | None:
        """Execute a batch; return what it raised, with nothing of it sent. Raises what it did not cause."""
        self._collector.faults.executing = batch
        self._batch.begin(batch)
        self._collector.guard.release()
        try:
            found: object = self._bolt.execute(batch, self._batch)  # type: ignore[func-returns-value]
            if found is not None:
                check_returned(found)
            self._batch.check_size()
        except BaseException as error:
            self._collector.guard.acquire()
            self._collector.check()
            if not is_of_tuple(error):
                raise
            self._batch.discard()
            cut_traceback(error)
            return error
        self._collector.guard.acquire()
        if self._chunk.is_given_up:
            self._batch.discard()
        else:
            self._batch.finish()
        return None

    def _may_split(self, error: BaseException) -> bool:
        """Return whether a part of what failed may succeed: not if it broke a rule, or asks to wait."""
        return not isinstance(error, Misuse | RetryLater) and not self._batch.was_sent

    def _fail_all(self, tuples: Iterable[Tuple], error: BaseException) -> None:
        for tup in tuples:
            if tup._state is IN_HAND:
                fail(tup, error, self._collector)
