"""A driver that has many results to apply, and many records to give up, at a time."""

from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import TopicPartition

from acktree.core.kafka.clients import make_consumer
from acktree.producers.ledger.task import ExhaustedRecord
from acktree.producers.spouts.driver import result_topics
from acktree.producers.spouts.driver.dead_letters import DeadLetterReader
from acktree.producers.spouts.driver.spout_results import MAX_DEAD_LETTERS
from acktree.producers.spouts.state_topic import DeadLetter
from acktree.wire.control_records import NEVER, Cause
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated

SOME = 50
"""Rejected records of one result."""


def test_rejected_records_are_written_together_and_a_commit_comes_between(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad deploy rejects all that is pending: who dies on the way writes again what no commit holds."""
    records = 2 * MAX_DEAD_LETTERS + SOME
    t = spout(records=records, max_pending=records)
    emitted = t.emitted(t.next_batch())
    for start in range(0, records, SOME):
        failed = [(*each, Cause.FAILED) for each in emitted[start : start + SOME]]
        t.send_result(failed=failed, retry_after_ms=NEVER)
    waits, read = list[int](), DeadLetterReader.read

    def counted(reader: DeadLetterReader, given: Sequence[ExhaustedRecord]) -> list[DeadLetter | None]:
        waits.append(t.count("dead_lettered"))
        return read(reader, given)

    monkeypatch.setattr(DeadLetterReader, "read", counted)
    t.serve(DEADLINE_S)
    assert t.count("dead_lettered") == MAX_DEAD_LETTERS
    t.until(lambda: t.count("dead_lettered") == records)
    assert waits[:2] == [0, MAX_DEAD_LETTERS]
    assert len(waits) <= 4, "a slow broker may give the last results in two parts"
    t.until(lambda: t.committed() == records)
    assert values(t, records) == [f"record {number}".encode() for number in range(records)]


def test_dead_letters_that_fill_the_queue_of_their_producer_are_all_written(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=SOME, max_pending=SOME, options={"kafka.queue.buffering.max.messages": "7"})
    t.send_result(failed=[(*each, Cause.FAILED) for each in t.emitted(t.next_batch())], retry_after_ms=NEVER)
    t.until(lambda: t.count("dead_lettered") == SOME)
    assert values(t, SOME) == [f"record {number}".encode() for number in range(SOME)]


def values(t: SpoutTester, count: int) -> list[bytes | None]:
    """Return the values of the dead letters."""
    reader = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.look"})
    reader.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    found = reader.consume(count + 1, 1.0)
    reader.close()
    return [record.value() for record in found]


def test_results_are_read_until_none_is_left_before_a_batch_is_planned(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a long batch nobody reads them, and what is done counts as pending until then."""
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    for each in emitted:
        t.send_result(acked=[each])
    monkeypatch.setattr(result_topics, "MAX_RESULTS_PER_POLL", 3)
    t.serve(DEADLINE_S)
    assert t.pending < 10 - 3, "not one poll alone; a real client may have fetched no more yet"
