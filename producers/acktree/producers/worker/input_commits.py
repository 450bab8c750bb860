"""What a worker commits: it sends what is done, then commits how far its inputs are.

Invariant: children and acks are durable before the offsets of their inputs are committed. After a lost
transaction nothing is committed before its inputs are read again, or left to their next owner.
"""

import logging
from collections.abc import Collection

from acktree.producers.collecting.collector import Collector
from acktree.producers.errors import TransactionAborted
from acktree.producers.kafka.inputs import Inputs, Place
from acktree.producers.kafka.output import Output
from acktree.producers.tuples import IN_HAND
from acktree.producers.worker.execute_limit import CommitGate
from acktree.producers.worker.execution import Execution
from acktree.schemas.outages import log_retry
from acktree.schemas.progress import Progress

log = logging.getLogger("acktree.bolt")


class InputCommits:
    """The commits of one worker; all calls come from its loop, ``in_callback`` in a rebalance."""

    def __init__(
        self,
        collector: Collector,
        execution: Execution,
        inputs: Inputs,
        output: Output,
        progress: Progress,
        gate: CommitGate,
    ) -> None:
        self._collector, self._execution = collector, execution
        self._inputs, self._output, self._progress, self._gate = inputs, output, progress, gate
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
        self.must_rewind = False
        self.drop(list(self._inputs.hands))
        self._inputs.rewind()

    def commit_leaving(self, leaving: Collection[Place], in_callback: bool = False) -> None:
        """Flush and commit; if the transaction was aborted, leave its inputs to the next owner.

        The inputs of partitions that stay are read again.
        """
        try:
            self._flush_and_commit(leaving, in_callback)
        except TransactionAborted as error:
            log.warning("%s; the next owner reads again", error, extra={"action": "aborted"})
            self.must_rewind = True

    def _flush_and_commit(self, leaving: Collection[Place] = (), in_callback: bool = False) -> None:
        """Send everything, then commit the frontiers of the inputs.

        Raises:
            TransactionAborted: this transaction, or one whose inputs have not been read again yet.
        """
        with self._gate.passing():
            if self.must_rewind:
                raise TransactionAborted("what the last transaction has lost is not read again yet")
            self._collector.release()
            offsets = self._inputs.frontiers(leaving)
            self._collector.flush()
            with self._progress.waiting():
                is_committed = self._output.flush_and_commit(self._inputs.consumer, offsets, in_callback)
            if is_committed:
                self._inputs.mark_committed(offsets, leaving)

    def drop(self, places: list[Place]) -> None:
        """Release the tuples in hand of partitions that will be read again."""
        held = self._inputs.in_hand(places)
        waiting = [tup for tup in held if tup._state is IN_HAND]
        self._collector.drop(held)
        if waiting:
            self._execution.drop(waiting)
