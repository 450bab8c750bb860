"""Members that come and go and counts that change, all under load: no replay, and progress all along."""

import random
import time

import pytest

CHANGE_S, CHURN_S = 0.5, 10.0
PROTOCOLS = {"classic": {}, "kip-848": {"group.protocol": "consumer"}}


class Load:
    """Trees of an init and two acks, sent chunk by chunk; the acks come some chunks later, in any order."""

    def __init__(self, cluster, seed, chunk=20, delay=8):
        self._cluster, self._source = cluster, random.Random(seed)
        self._chunk, self._delay, self._late = chunk, delay, []
        self.roots = []

    def step(self):
        """Send a chunk of inits, and the acks of an earlier one."""
        cluster, source = self._cluster, self._source
        roots = range(len(self.roots) + 1, len(self.roots) + 1 + self._chunk)
        self.roots += roots
        pairs = [(root, source.getrandbits(64)) for root in roots]
        halves = [(root, source.getrandbits(64)) for root in roots]
        rest = [(root, value ^ half) for (root, value), (_, half) in zip(pairs, halves, strict=True)]
        self._late += [(cluster.version, halves), (cluster.version, rest)]
        cluster.init_many(pairs)
        while len(self._late) > self._delay:
            self._ack(self._late.pop(source.randrange(len(self._late))))
        cluster.sent().collect()

    def finish(self, deadline_s=60):
        """Send all acks that are left, and wait for every verdict."""
        while self._late:
            self._ack(self._late.pop())
        self._cluster.await_acked(self.roots, deadline_s)

    def _ack(self, late):
        version, pairs = late
        self._cluster.ack_many(pairs, version)


def test_the_acker_count_changes_up_and_down_under_load_without_a_replay(make):
    cluster = make(ackers=1, timeout_s=20)
    members = [cluster.start(), cluster.start()]
    load = Load(cluster, seed=4)
    for ackers in (4, 2, 5, 1, 3):
        before = len(set(cluster.acked))
        while len(set(cluster.acked)) < before + 200:
            load.step()
        cluster.apply(ackers)
    for _ in range(10):
        load.step()
    load.finish()
    assert cluster.failed == {}
    assert [member.acker.set_aside.total for member in members] == [0, 0]
    assert sorted(members[0].partitions + members[1].partitions) == [0, 1, 2, 3, 4]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_ackers_join_and_leave_every_half_second_and_nothing_times_out(make, protocol, is_static):
    cluster = make(ackers=4, timeout_s=30)

    def join(name):
        return cluster.join(**protocol, **({"group.instance.id": name} if is_static else {}))

    members, guests = [join("stays").await_ready()], {}
    load, changes, longest_s = Load(cluster, seed=5), 0, 0.0
    started_s = last_s = time.monotonic()
    while time.monotonic() < started_s + CHURN_S:
        before = len(cluster.acked)
        load.step()
        if len(cluster.acked) > before:
            longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
        if time.monotonic() < started_s + changes * CHANGE_S:
            continue
        changes += 1
        guest = f"guest-{changes % 2}"
        if guest not in guests:
            guests[guest] = join(guest)
            members.append(guests[guest])
        elif guests[guest].is_gone:
            del guests[guest]
        else:
            guests[guest].leave()
    for guest, member in guests.items():
        member.stop()
        members.append(join(guest))
    load.finish()
    assert [member.error for member in members if member.error] == []
    assert len(members) >= 5
    assert longest_s < 8, "no progress"
    assert cluster.failed == {}


@pytest.mark.timeout(120)
def test_of_two_ackers_one_is_killed_again_and_again_under_load_and_nothing_times_out(make):
    cluster = make(ackers=2, timeout_s=30)
    members = [cluster.start_process().await_ready(), cluster.start_process().await_ready()]
    load, source = Load(cluster, seed=6), random.Random(6)
    for _ in range(3):
        before = len(set(cluster.acked))
        while len(set(cluster.acked)) < before + 300:
            load.step()
        victim = source.randrange(2)
        members[victim].kill()
        members[victim] = cluster.start_process()
    load.finish()
    assert cluster.failed == {}
