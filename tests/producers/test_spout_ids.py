"""A spout in Python never repeats a root id, however often it starts: runs wrap around after 255 starts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.kafka.clients import make_producer
from acktree.producers.collecting.spout_emitter import Sequences
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.wire.header import decode_header, find_header
from acktree.wire.ids import MAX_OFFSET, MAX_RUN
from acktree.wire.state_records import TaskState, decode_task_state, encode_task_state, task_key
from producers.cluster import WorkerCluster, until
from producers.test_spout import Once, ScriptedAcker, emitter, run
from producers.trees import Net, published

pytestmark = pytest.mark.simulated


def emit(cluster: WorkerCluster, *messages: str) -> tuple[SpoutWorker, Once]:
    """Start a spout, and let it emit its messages; it gets no results."""
    spout, before = Once(*messages), len(cluster.read(cluster.topic("a")))
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)
    until(lambda: len(cluster.read(cluster.topic("a"))) == before + len(messages), "all is emitted")
    worker.stop()
    thread.join()
    return worker, spout


def state_of(cluster: WorkerCluster) -> TaskState:
    """Return what the task has committed last."""
    records = cluster.read(cluster.topic("state-s"))
    return [decode_task_state(record.value()) for record in records if record.key() == task_key(0)][-1]


def let_runs_go_round(cluster: WorkerCluster) -> None:
    """Leave the state that 254 further starts would leave."""
    state = state_of(cluster)
    later = state._replace(run=(state.run + MAX_RUN - 2) % MAX_RUN + 1, term=state.term + MAX_RUN - 1)
    producer = make_producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(cluster.topic("state-s"), encode_task_state(later), task_key(0), 0)
    producer.flush()


def test_an_ack_from_255_starts_ago_does_not_ack_a_new_message(cluster: WorkerCluster):
    cluster.apply(one=(["a"], []))
    acker = ScriptedAcker(cluster)
    first, _ = emit(cluster, "old")
    (old,) = acker.roots()[b"old"]
    let_runs_go_round(cluster)
    spout = Once("new")
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    assert worker.commits.state.run == first.commits.state.run
    thread = run(worker)
    until(lambda: b"new" in acker.roots())
    (new,) = acker.roots()[b"new"]
    assert new != old
    acker.acked(old)
    acker.failed(new)
    until(lambda: spout.failed == ["new"])
    worker.stop()
    thread.join()
    assert spout.acked == []


def test_no_number_is_used_before_it_is_durably_reserved(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("acktree.producers.spouts.task_commits.SEQUENCES", 4)
    cluster.apply(one=(["a"], []))
    seen: list[tuple[int, int]] = []

    class Looking(Once):
        def next_tuple(self, emitter):
            super().next_tuple(emitter)
            seen.append((emitter.sequences.next, state_of(cluster).sequence))

    worker = SpoutWorker(cluster.bootstrap, cluster.name, Looking(*map(str, range(20))))
    thread = run(worker)
    until(lambda: len(seen) > 20)
    worker.stop()
    thread.join()
    first = seen[0][0]
    assert [used for used, _ in seen[:20]] == list(range(first, first + 20))
    assert all(used <= reserved for used, reserved in seen)
    again = SpoutWorker(cluster.bootstrap, cluster.name, Once())
    assert again.emitter.sequences.next >= seen[-1][0]


@given(st.lists(st.integers(0, MAX_OFFSET + 1), max_size=3), st.integers(1, 9))
def test_numbers_rise_from_start_to_start_until_half_of_them_are_used(starts: list[int], count: int):
    for before in starts:
        numbers = Sequences(before, lambda: MAX_OFFSET + 1)
        taken = [numbers.take() for _ in range(count)]
        first = before if before < Sequences.MAX_START else 0
        assert taken == list(range(first, first + count))


def test_no_two_runs_have_a_root_in_common():
    net = Net(published(one=(["a"], [])))
    for run_number in (1, 2):
        emitter(net, {}, run_number).call(lambda e: e.emit(b"v", 1), 0.0)
    roots = [decode_header(find_header(r.headers())).anchors[0].root for r in net.topics["a"]]
    assert len(set(roots)) == 2
