"""Applies the results, commands and proofs on the result topics to a spout's ledgers.

Invariant: a record whose attempts are used up is done by the transaction that writes its dead letter, and the
result position moves only past applied results.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition

from acktree.core.errors import BrokerUnreachable
from acktree.producers.ledger.task import ExhaustedRecord, SourceSlot, TaskLedger
from acktree.producers.spouts.driver.dead_letters import DeadLetterReader, place_of
from acktree.producers.spouts.driver.replay_queue import QueuedReplay, ReplayQueue
from acktree.producers.spouts.driver.result_topics import LostResults, ResultRecord, ResultTopics
from acktree.producers.spouts.driver.spout_commits import SpoutCommits
from acktree.wire.control_records import Absent, Failure, ReplayCommand, Result

log = logging.getLogger("acktree.spark")

MAX_DEAD_LETTERS = 200
"""How many are read and written together, before more results are read; of large records fewer."""


class SpoutResults:
    """Reads the result topics of a spout's tasks and applies each record once."""

    def __init__(
        self,
        topics: ResultTopics,
        tasks: Mapping[int, TaskLedger],
        commits: SpoutCommits,
        replays: ReplayQueue,
        dead_letters: DeadLetterReader,
        *,
        is_removed: Callable[[SourceSlot, int], bool],
        is_away: Callable[[SourceSlot], bool],
        monotonic: Callable[[], float],
        jitter: Callable[[], float],
        on_failed: Callable[[str], object],
    ) -> None:
        """Read nothing yet; ``is_removed`` returns whether retention removed an absent record.

        ``is_away`` returns whether nothing of a partition can be read now, for want of a leader.
        ``on_failed`` is called with the reason of the last failure in a result.
        """
        self._topics, self._tasks, self._commits = topics, tasks, commits
        self._replays, self._dead_letters, self._is_removed = replays, dead_letters, is_removed
        self._is_away = is_away
        self._monotonic, self._jitter, self._on_failed = monotonic, jitter, on_failed
        self._has_caught_up = False
        self._exhausted: list[tuple[TaskLedger, ExhaustedRecord]] = []
        self._applied: dict[int, int] = {}
        """By task the offset behind the last result whose dead letters may not be written yet."""

    @property
    def are_read(self) -> bool:
        """Return whether all results are read that were there when their topics were added."""
        return self._topics.are_read

    @property
    def are_applied(self) -> bool:
        """Return whether no record that a result has given up waits for its dead letter."""
        return not self._exhausted

    def follow(self, tasks: Iterable[int]) -> None:
        """Also read the result topics of these tasks, each from its committed position on."""
        positions, topic_of = self._commits.positions, self._commits.result_topic
        self._topics.follow(TopicPartition(topic_of(task), 0, positions[task].next_offset) for task in tasks)

    def catch_up(self) -> None:
        """Read all results of earlier emissions if some would be repeated: their records may be done. Once.

        Only a driver that emits does this: one that Spark has asked only for its first offset does not know
        the blocks of the batch that Spark has logged, and would take an ack of one for its first record's.
        """
        if self._has_caught_up:
            return
        ledgers = [ledger for task in self._tasks.values() for ledger in task.slots.values()]
        if any(ledger.next_offset < ledger.emitted_before for ledger in ledgers):
            for entry in self._topics.read_to_ends():
                self._apply(entry)
                if len(self._exhausted) >= MAX_DEAD_LETTERS:
                    self._write_dead_letters()
            self._write_dead_letters()
        self._has_caught_up = True

    def read(self, wait_s: float) -> None:
        """Apply what is there, waiting up to ``wait_s`` for it; stop early to write MAX_DEAD_LETTERS.

        What was held back for the breaker's window is given up; where it has opened, that is due again.
        """
        for entry in self._topics.read(wait_s):
            self._apply(entry)
            if len(self._exhausted) >= MAX_DEAD_LETTERS:
                break  # a commit comes first: who dies before it writes them again
        for task in self._tasks.values():
            self._exhausted += [(task, record) for record in task.take_exhausted(self._monotonic())]
        self._write_dead_letters()

    def _apply(self, entry: ResultRecord) -> None:
        record = entry.record
        self._applied[entry.task] = entry.offset + 1
        if isinstance(record, LostResults):
            self._lose(record)
        elif record is None:
            next(iter(self._tasks.values())).counters["invalid"] += 1
        elif isinstance(record, ReplayCommand):
            self._replays.add(QueuedReplay(entry.task, entry.offset, record))
        elif isinstance(record, Absent):
            for task in self._tasks.values():
                task.apply_absent(record)
        else:
            self._apply_result(record, entry.age_s)

    def _lose(self, lost: LostResults) -> None:
        """Emit again what is in flight: nobody knows what it led to."""
        text = (
            "%s/0: results at offsets %d to %d are %s: what is in flight is emitted again, and replay "
            "commands among them have to be given again"
        )
        about = (lost.topic, lost.start, lost.end - 1, lost.cause)
        log.error(text, *about, extra={"action": "results_lost"})
        for task in self._tasks.values():
            task.counters["invalid"] += 1
            task.fail_in_flight(self._monotonic())

    def _apply_result(self, result: Result, age_s: float) -> None:
        for task in self._tasks.values():
            effect = task.apply(result, self._monotonic(), self._jitter(), age_s)
            if effect.failed:
                self._on_failed(result.failed[-1].reason or "a record timed out")
            self._exhausted += [(task, exhausted) for exhausted in effect.exhausted]

    def fail(self, failures: Sequence[Failure]) -> None:
        """Apply failures of records that never were in an acker, and commit the dead letters."""
        if failures:
            self._apply_result(Result(0, failed=failures), 0.0)
            self._write_dead_letters()

    def _write_dead_letters(self) -> None:
        """Write the dead letters, finish their records, and let result positions pass what was applied."""
        if any(task.breaker.is_open for task in self._tasks.values()):
            for task, record in self._exhausted:  # a later result has opened it
                task.put_back(record, self._monotonic())
            self._exhausted.clear()
        self._exhausted.sort(key=lambda each: place_of(each[1]))
        while some := self._exhausted[:MAX_DEAD_LETTERS]:
            del self._exhausted[: self._write(some)]
        self._pass_applied()

    def _write(self, some: Sequence[tuple[TaskLedger, ExhaustedRecord]]) -> int:
        """Write the dead letters of the first records, and return how many of them are done with."""
        try:
            letters = self._dead_letters.read([record for _, record in some])
        except BrokerUnreachable:
            away = [each for each in some if self._is_away(each[1].source)]
            if not away:
                raise
            for task, record in away:  # its partition has no leader: it waits there, and no other one
                task.put_back(record, self._monotonic())
            others = [each for each in some if each not in away]
            self._exhausted[: len(some)] = others
            return self._write(others)
        for (task, record), letter in zip(some, letters, strict=False):
            if letter is not None:
                task.finish_record(record)
            else:
                is_lost = self._is_removed(record.source, record.offset)
                task.finish_record(record, "lost" if is_lost else "absent")
        self._commits.commit_dead_letters([letter for letter in letters if letter is not None])
        return len(letters)

    def _pass_applied(self) -> None:
        for number, next_offset in self._applied.items():
            self._commits.positions[number].read = next_offset
        self._applied.clear()

    def close(self) -> None:
        """Close the connections of the reader of dead letters."""
        self._dead_letters.close()
