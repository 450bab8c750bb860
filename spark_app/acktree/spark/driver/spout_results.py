"""What the result topics say, applied to a spout's ledgers.

Invariant: a record whose attempts are used up is on the dead-letter topic before it counts as done, and the
result position follows only what has been applied.
"""

from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import TopicPartition

from acktree.schemas.control_records import Absent, ReplayCommand
from acktree.spark.driver.dead_letters import DeadLetterWriter
from acktree.spark.driver.replay_queue import QueuedReplay, ReplayQueue
from acktree.spark.driver.result_topics import ResultRecord, ResultTopics
from acktree.spark.driver.spout_commits import SpoutCommits
from acktree.spark.ledger.result_cut import Emission
from acktree.spark.ledger.task import ExhaustedRecord, SourceSlot, TaskLedger


class SpoutResults:
    """Reads the result topics of a spout's tasks and applies each record once."""

    def __init__(
        self,
        topics: ResultTopics,
        tasks: Mapping[int, TaskLedger],
        commits: SpoutCommits,
        replays: ReplayQueue,
        dead_letters: DeadLetterWriter,
        *,
        is_removed: Callable[[SourceSlot, int], bool],
        monotonic: Callable[[], float],
        jitter: Callable[[], float],
        on_failed: Callable[[str], object],
    ) -> None:
        """Read nothing yet; ``is_removed`` returns whether retention removed an absent record.

        ``on_failed`` is called with the reason of the last failure in a result.
        """
        self._topics, self._tasks, self._commits = topics, tasks, commits
        self._replays, self._dead_letters, self._is_removed = replays, dead_letters, is_removed
        self._monotonic, self._jitter, self._on_failed = monotonic, jitter, on_failed
        self._has_caught_up = False

    @property
    def are_read(self) -> bool:
        """Return whether all results are read that were there when their topics were added."""
        return self._topics.are_read

    def follow(self, tasks: Iterable[int]) -> None:
        """Read the result topics of these tasks, too, each from its committed position on."""
        claims, topic_of = self._commits.claims, self._commits.result_topic
        self._topics.follow(TopicPartition(topic_of(task), 0, claims[task].next_offset) for task in tasks)

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
        self._has_caught_up = True

    def read(self, wait_s: float) -> None:
        """Apply what is there, waiting up to ``wait_s`` for it."""
        for entry in self._topics.read(wait_s):
            self._apply(entry)
        self._give_up_held()

    def _give_up_held(self) -> None:
        """Give up what was held back for the breaker's window; where it has opened, that is due again."""
        for task in self._tasks.values():
            for exhausted in task.take_exhausted(self._monotonic()):
                self._send_dead_letter(task, exhausted)

    def _apply(self, entry: ResultRecord) -> None:
        record, cut = entry.record, self._commits.cuts[entry.task]
        if record is None or isinstance(record, ReplayCommand):
            if record is None:
                next(iter(self._tasks.values())).counters["set_aside"] += 1
            else:
                self._replays.add(QueuedReplay(entry.task, entry.offset, record))
            cut.record(entry.offset, {}, ())
            return
        highest: dict[int, int] = {}
        failed: list[Emission] = []
        for task in self._tasks.values():
            if isinstance(record, Absent):
                effect = task.apply_absent(record)
            else:
                effect = task.apply(record, self._monotonic(), self._jitter(), entry.age_s)
                if effect.failed:
                    self._on_failed(record.failed[-1].reason or "a record timed out")
            highest |= effect.highest
            failed += effect.failed
            for exhausted in effect.exhausted:
                self._send_dead_letter(task, exhausted)
        cut.record(entry.offset, highest, failed)

    def _send_dead_letter(self, task: TaskLedger, record: ExhaustedRecord) -> None:
        if self._dead_letters.write(record):
            task.finish_record(record, "dead_lettered")
        else:
            is_lost = self._is_removed(record.source, record.offset)
            task.finish_record(record, "lost" if is_lost else "absent")
