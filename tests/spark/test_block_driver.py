"""A spout that tracks by block, on a real broker: a root for ten records; the test plays Spark and acker."""

import json
from collections import Counter
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from acktree.console.main import main
from acktree.core.kafka.clients import make_consumer
from acktree.core.topology.registry import read_history
from acktree.producers.collecting.arithmetic.packing import InitPacker
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.wire.control_records import Cause
from acktree.wire.ids import generation_of, root_id
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated


def fail(t: SpoutTester, root: tuple[int, int]) -> None:
    failed = t.count("failed")
    t.send_result(failed=[(*root, Cause.FAILED)])
    t.until(lambda: t.count("failed") > failed)


def test_all_records_of_a_block_are_done_with_its_root(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=25, block=10)
    roots = t.roots(t.next_batch())
    assert list(map(len, roots.values())) == [10, 10, 5]
    first, second, third = roots
    t.send_result(acked=[second, third])
    t.until(lambda: t.count("completed") == 15)
    assert (t.committed(), t.pending) == (0, 10)
    t.send_result(acked=[first])
    t.until(lambda: t.committed() == 25)
    assert t.result_position() == 2


def test_the_records_of_a_failed_block_are_replayed_each_under_its_own_root(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=30, block=10)
    first, second, third = t.roots(t.next_batch())
    t.send_result(acked=[first])
    fail(t, second)
    t.until(lambda: t.committed() == 10)
    t.now_s += 2
    replays = t.roots(t.next_batch())
    assert replays == {(offset, second[1] + 1): [offset] for offset in range(10, 20)}
    assert (t.count("failed"), t.count("replayed")) == (10, 10)
    t.next_batch()
    t.driver.commit_and_report()
    assert t.result_position() == 2
    t.send_result(acked=[*replays, third])
    t.until(lambda: t.committed() == 30)


def test_a_driver_that_was_killed_knows_the_blocks_in_flight(spout: Callable[..., SpoutTester]) -> None:
    """Also those of earlier batches, which the end of a log has cut short."""
    t = spout(records=7, block=10)
    roots = list(t.roots(t.next_batch()))
    for more in (4, 12):
        t.send(more)
        roots += t.roots(t.next_batch())
    assert [first for first, _ in roots] == [0, 7, 10, 11, 20]
    t.send_result(acked=[roots[1]], failed=[(*roots[3], Cause.FAILED)])
    t.start()
    assert t.next_batch() is None
    t.until(lambda: (t.count("completed"), t.count("failed")) == (3, 9))
    t.now_s += 5
    replays = t.roots(t.next_batch())
    generation = generation_of(t.driver.tasks[0].slots[0].run, 1)
    assert replays == {(offset, generation): [offset] for offset in range(11, 20)}
    t.start()
    t.send_result(acked=[roots[0], roots[2], roots[4], *replays])
    t.until(lambda: t.committed() == 23)


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_one_failing_record_of_a_block_is_one_dead_letter(
    spout: Callable[..., SpoutTester], max_attempts: int
) -> None:
    """The failure of the block counts for none of its records: which one it was nobody knows."""
    t = spout(records=12, block=4, max_attempts=max_attempts)
    first, second, third = t.roots(t.next_batch())
    fail(t, second)
    for attempt in range(max_attempts):
        t.now_s += 10
        again = t.roots(t.next_batch())
        assert [offset for offset, _ in again] == ([4, 5, 6, 7] if attempt == 0 else [6])
        (hit,) = [root for root in again if root[0] == 6]
        t.send_result(acked=[root for root in again if root != hit])
        fail(t, hit)
    t.send_result(acked=[first, third])
    t.until(lambda: t.committed() == 12)
    assert (t.count("dead_lettered"), t.pending) == (1, 0)
    reader = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.test"})
    reader.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    (dead_letter,) = reader.consume(1, 20)
    assert reader.consume(1, 0.5) == []
    reader.close()
    assert dead_letter.value() == b"record 6"
    headers = dict(dead_letter.headers() or [])
    assert headers["acktree-origin"] == f"{t.name}.source/0/6".encode()
    assert headers["kafka_dlt-original-offset"] == (6).to_bytes(8, "big")
    assert (headers["acktree-attempts"], headers["kept"]) == (b"%d" % max_attempts, b"yes")


def test_a_rewind_into_a_block_starts_with_the_rest_of_it(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=30, block=10)
    old = t.roots(t.next_batch())
    t.send_result(acked=list(old)[:2])
    t.until(lambda: t.committed() == 20)
    t.operator_commits(13)
    t.until(lambda: t.count("rewinds") == 1)
    again = t.roots(t.next_batch())
    assert list(map(len, again.values())) == [7, 10]
    t.send_result(acked=list(old))
    t.send_result(acked=list(again)[1:])
    t.until(lambda: t.count("completed") == 30)
    assert t.committed() == 13
    t.send_result(acked=list(again)[:1])
    t.until(lambda: t.committed() == 30)


def test_a_replay_command_emits_the_requested_records_and_no_others(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=30, block=10)
    old = t.roots(t.next_batch())
    t.send_result(acked=list(old)[1:])
    t.until(lambda: t.count("completed") == 20)
    t.command((4, 12))
    t.until(lambda: t.count("commands") == 1)
    again = t.roots(t.next_batch())
    assert list(again.values()) == [[offset] for offset in range(4, 12)]
    t.send_result(acked=list(old)[:1])
    t.until(lambda: t.committed() == 4)
    t.start()
    t.send_result(acked=list(again))
    t.until(lambda: t.committed() == 30)


def test_blocks_in_flight_keep_their_size_when_another_one_is_published(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=20, block=10)
    old = t.roots(t.next_batch())
    t.text = t.text.replace("block = 10", "block = 3")
    t.apply()
    t.send(4)
    t.until(lambda: t.driver.topology.version == 2)
    new = t.roots(t.next_batch())
    assert list(new.values()) == [[20], [21, 22, 23]]
    t.start()
    t.send_result(acked=list(new))
    t.until(lambda: t.count("completed") == 4)
    t.send_result(acked=list(old))
    t.until(lambda: t.committed() == 24)


def test_no_more_blocks_are_in_flight_than_max_pending_has_room_for(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=100, block=10, max_pending=35)
    roots = t.roots(t.next_batch())
    assert Counter(map(len, roots.values())) == {10: 3}
    assert t.next_batch() is None
    t.send_result(acked=list(roots)[1:2])
    t.until(lambda: t.count("completed") == 10)
    assert list(t.roots(t.next_batch()).values()) == [list(range(30, 40))]


def test_the_progress_counts_records_and_not_blocks(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=30, block=10, max_pending=20)
    first, second = t.roots(t.next_batch())

    def counts(*names: str) -> list[int]:
        progress = t.driver.progress(t.driver.log_ends())
        return [progress[name] for name in ("pending", "frontierLag", "emitted", *names)]

    assert counts() == [20, 30, 20]
    t.send_result(acked=[second])
    t.until(lambda: t.count("completed") == 10)
    assert counts("completed") == [10, 30, 20, 10]
    fail(t, first)
    t.now_s += 2
    assert t.next_batch() is not None
    assert counts("failed", "replayed") == [20, 30, 30, 10, 10]


@pytest.mark.real
def test_a_record_inside_a_block_is_found_by_the_blocks_root(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=25, block=10)
    _, second, _ = t.roots(t.next_batch())
    root = root_id(0, second[1], second[0])
    packer = InitPacker(
        read_history(t.bootstrap, t.name, {}),
        0,
        lambda topic, partition, value: t.producer.produce(topic, value, partition=partition),
    )
    packer.add(1, root, 7)
    packer.flush()
    t.producer.flush()
    t.driver.commit_and_report()
    common = ["--topology", t.name, "-b", t.bootstrap, "--format", "json"]
    traced = CliRunner().invoke(main, ["trace", f"{t.name}.source", "0", "17", *common])
    assert traced.exit_code == 0, traced.output
    trace = json.loads(traced.output)
    assert [each["root"] for each in trace["emissions"]] == [f"{root:016x}"]
    assert any("up to 10 records share a root" in note for note in trace["notes"])
    pending = CliRunner().invoke(main, ["pending", "list", *common])
    listed = json.loads(pending.output)
    assert [each["offset"] for each in listed["pending"]] == [0]
    assert listed["notes"] == [
        "up to 10 records of spout in share a root in their first emission: "
        "the root of the block's first record"
    ]


def test_blocks_and_complete_batch_are_refused_together(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=0, block=10)
    with pytest.raises(BadOption, match="cannot have block = 10; take block out of the topology"):
        SpoutDriver(t.options(complete="batch"))


def test_a_driver_asked_only_for_its_first_offset_applies_no_result_of_a_block(
    spout: Callable[..., SpoutTester],
) -> None:
    """Spark runs a cut-off first batch again: it asks where to begin, and says later what it has logged."""
    t = spout(records=30, block=10)
    roots = list(t.roots(t.next_batch()))
    logged, t.batch = t.batch, None
    t.send_result(acked=roots)
    t.start()
    t.driver.close()
    t.drivers.remove(t.driver)
    t.batch = logged
    t.start()
    t.until(lambda: t.committed() == 30)
