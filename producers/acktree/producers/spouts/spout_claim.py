"""The claim of a running Python spout on its task: checked and renewed, with more message numbers reserved.

Invariant: no message number is used before a durable claim reserves it. While the broker is away the claim is
renewed later; a claim that another process has taken ends this one.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer, retry_until_ready
from acktree.core.kafka.errors import was_transient
from acktree.core.kafka.outages import log_retry
from acktree.core.reports.liveness import Liveness
from acktree.producers.collecting.spout_emitter import Sequences
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline, close_consumer
from acktree.producers.spouts.claim import Claim, LostClaim, claim_run, commit_claim, read_claim
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import MAX_OFFSET

SPREAD_BITS = 31
"""A start leaves out up to 2^31 numbers at random: two processes that claim at once, and read the same claim,
give out others. 255 starts leave out less than the 2^39 numbers after which they begin again."""
SEQUENCES = 1 << 22
"""How many message numbers each claim reserves; when they run out, the next claim is made immediately."""

log = logging.getLogger("acktree.spout")


class SpoutClaim:
    """Claims a task when it is made; ``sequences`` are the message numbers that its emitter takes."""

    def __init__(
        self,
        bootstrap: str,
        settings: dict[str, Any],
        spout: str,
        result_topic: str,
        group: str,
        progress: Liveness,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Claim a run. Raises LostClaim, GroupInUse, BrokerUnreachable, BrokerRefused."""
        self._bootstrap, self._settings, self._spout = bootstrap, settings, spout
        self._result_topic, self._group = result_topic, group
        self._progress, self._is_stopping = progress, is_stopping
        self._consumer = make_consumer(settings)
        self.claim: Claim = claim_run(self._consumer, result_topic, group, bootstrap)
        self.sequences = Sequences(self.claim.sequence + world.random_bits(SPREAD_BITS), self._reserve)

    def renew(self) -> None:
        """Check that the task is still ours, and renew the claim; if the broker is away, do it later."""
        until_s = world.monotonic_s() + BROKER_TIMEOUT_S
        try:
            reserved = call_with_deadline(
                self._check_and_commit, lambda: not self._is_stopping() and world.monotonic_s() < until_s
            )
            self.sequences.extend(reserved)
        except CallTimedOut:
            log_retry(log, "claim not renewed: no answer", action="claim_not_renewed")
            self._consumer = make_consumer(self._settings)  # the old one is stuck in its call
        except AcktreeError as error:
            if not was_transient(error):
                raise
            log_retry(log, "claim not renewed: %s", error, action="claim_not_renewed")

    def _reserve(self) -> int:
        """Reserve message numbers within a call of ``next_tuple``, however long that takes."""
        with self._progress.waiting():
            return retry_until_ready(self._check_and_commit, wait_if_away=True)

    def _check_and_commit(self) -> int:
        """Commit the claim with more message numbers; return where they end.

        Changes nothing here: where its caller no longer waits, it runs beside the loop.
        """
        consumer = self._consumer
        committed = read_claim(consumer, self._result_topic, self._bootstrap)
        if committed is not None and committed.epoch != self.claim.epoch:  # none is fine: its offset expired
            raise LostClaim(f"another process runs this task of spout {self._spout}; this one stops")
        claim = replace(self.claim, sequence=min(self.sequences.next + SEQUENCES, MAX_OFFSET + 1))
        commit_claim(consumer, self._result_topic, claim, self._group, self._bootstrap)
        return claim.sequence

    def close(self) -> None:
        """Close the connection."""
        close_consumer(self._consumer)
