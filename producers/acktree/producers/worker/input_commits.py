"""Commits for a worker: sends finished output, then commits how far its inputs are done.

Invariant: children and acks are durable before the offsets of their inputs are committed. After a lost
transaction nothing is committed before its inputs are read again, or left to their next owner.
"""

import logging
from collections.abc import Collection

from acktree.core.kafka.log_reader import Found
from acktree.core.kafka.outages import log_retry
from acktree.core.reports.liveness import Liveness
from acktree.producers.collecting.collector import Collector
from acktree.producers.errors import TransactionAborted
from acktree.producers.kafka.inputs import Inputs
from acktree.producers.kafka.output import Output
from acktree.producers.tuples import IN_HAND, Place
from acktree.producers.worker.executing.execution import Execution

log = logging.getLogger("acktree.bolt")


class InputCommits:
    """Makes the commits of one worker; all calls come from its loop, ``in_callback`` in a rebalance.

    They are made with the collector's guard held, so a bolt that emits meanwhile waits.
    """

    def __init__(
        self,
        collector: Collector,
        execution: Execution,
        inputs: Inputs,
        output: Output,
        progress: Liveness,
    ) -> None:
        self._collector, self._execution = collector, execution
        self._inputs, self._output, self._progress = inputs, output, progress
        self.must_rewind = False
        """Whether a transaction was lost by a revocation: its inputs that stayed must be read again."""

    def commit(self) -> None:
        """Flush and commit; if the transaction was aborted, drop what is in hand and read it again."""
        try:
            self._flush_and_commit()
        except TransactionAborted as error:
            log_retry(log, "%s; its inputs are read again", error, action="aborted")
            self.rewind()

    def rewind(self) -> None:
        """Drop what is in hand, and read everything since the last commit again."""
        self.drop(None)
        self.must_rewind = False
        self._inputs.rewind()

    def pass_unreadable(self) -> list[str]:
        """Commit, go on where logs have fallen, and return what cannot be read, which is passed.

        A partition whose log has fallen is read from its end on: what it had is gone, and what is left below
        was executed. Its tuples in hand are dropped, as their offsets will be those of other records.
        """
        self.commit()
        said = []
        troubles, self._inputs.troubles = self._inputs.troubles, []
        for log_range in troubles:
            place = log_range.place
            if log_range.found is Found.FELL:
                start = self._inputs.first_open(place, log_range.start)
                self.drop([place])
                self._inputs.clear([place])
                self._inputs.begin_fallen(place, start)
            elif log_range.found is Found.DAMAGED:
                self._collector.counters.invalid += log_range.end - log_range.start
            log.warning("%s", log_range.text, extra={"action": log_range.action})
            said.append(log_range.text)
        return said

    def commit_leaving(self, leaving: Collection[Place], in_callback: bool = False) -> None:
        """Flush and commit; if the transaction was aborted, leave its inputs to the next owner.

        The inputs of partitions that stay are read again.
        """
        try:
            while self._flush_and_commit(leaving, in_callback):
                pass
        except TransactionAborted as error:
            log.warning("%s; the next owner reads them again", error, extra={"action": "aborted"})
            self.must_rewind = True

    def _flush_and_commit(self, leaving: Collection[Place] = (), in_callback: bool = False) -> bool:
        """Send what a commit takes, then commit the frontiers of the inputs; return whether more waits.

        Raises:
            TransactionAborted: this transaction, or one whose inputs have not been read again yet.
        """
        if self.must_rewind:
            raise TransactionAborted("the inputs of the lost transaction have not been read again yet")
        has_more = self._collector.release()
        offsets = self._inputs.frontiers(leaving)
        self._collector.flush()
        with self._progress.waiting():
            is_committed = self._output.flush_and_commit(self._inputs.consumer, offsets, in_callback)
        if is_committed:
            self._inputs.mark_committed(offsets, leaving)
        return has_more

    def drop(self, places: list[Place] | None) -> None:
        """Release the tuples in hand of partitions that will be read again, None for all."""
        held = self._inputs.in_hand(places)
        waiting = [tup for tup in held if tup._state is IN_HAND]
        self._collector.drop(held)
        if self._execution.drop(waiting, places):
            self._collector.drop(self._inputs.in_hand())
            self.must_rewind = True
