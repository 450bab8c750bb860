"""Members that come and go and counts that change, all under load: no replay, and progress all along."""

import random
import subprocess
import sys

import pytest

from acker.cluster import wait_for
from acktree.console.devbroker.owner import die_with_owner
from acktree.core.errors import BrokerRefused

pytestmark = pytest.mark.simulated

STEPS_A_CHANGE, CHANGES = 6, 12
MOST_CHANGES, ACKED_MEANWHILE, BURNERS = 60, 200, 2
PROTOCOLS = {"classic": {}, "kip-848": {"group.protocol": "consumer"}}


@pytest.fixture
def busy(simulation):
    """Keep the processors busy with processes that do nothing else, if that costs time; they end with us."""
    command = [sys.executable, "-c", "while True: pass"]
    burners = [
        subprocess.Popen(command, preexec_fn=die_with_owner())
        for _ in range(BURNERS if simulation is None else 0)
    ]
    yield burners
    for burner in burners:
        burner.kill()
        burner.wait()


class Load:
    """Trees of an init and two acks, sent chunk by chunk; the acks come some chunks later, in any order."""

    def __init__(self, cluster, seed, chunk=20, delay=8):
        self._cluster, self._source = cluster, random.Random(seed)
        self._chunk, self._delay, self._late = chunk, delay, []
        self.roots = []

    @property
    def done(self):
        """The roots acked so far, once each."""
        return set(self._cluster.acked)

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
        unsent = {root for _, pairs in self._late for root, _ in pairs}
        assert unsent.isdisjoint(cluster.acked), "acked before its acks were sent"

    def finish(self, deadline_s=150):
        """Send all acks that are left, and wait for every result."""
        while self._late:
            self._ack(self._late.pop())
        self._cluster.await_acked(self.roots, deadline_s)

    def _ack(self, late):
        version, pairs = late
        self._cluster.ack_many(pairs, version)


def test_the_acker_count_changes_up_and_down_under_load_without_a_replay(make):
    cluster = make(ackers=1, timeout_s=120)
    members = [cluster.start(), cluster.start()]
    load = Load(cluster, seed=4)
    for ackers in (4, 2, 5, 1, 3):
        more = len(load.done) + 200
        wait_for(lambda more=more: len(load.done) >= more, "200 more roots", step=load.step)
        cluster.apply(ackers)
    for _ in range(10):
        load.step()
    load.finish()
    assert cluster.failed == {}
    assert [member.acker.invalid.total for member in members] == [0, 0]
    assert sorted(members[0].partitions + members[1].partitions) == [0, 1, 2, 3, 4]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("protocol", "is_static"),
    [
        pytest.param(PROTOCOLS["classic"], False, id="classic-dynamic"),
        pytest.param(PROTOCOLS["classic"], True, id="classic-static"),
        pytest.param(PROTOCOLS["kip-848"], False, id="kip-848-dynamic"),
        pytest.param(PROTOCOLS["kip-848"], True, id="kip-848-static"),
    ],
)
def test_nothing_times_out_while_ackers_join_and_leave_constantly_on_a_busy_machine(
    make, busy, protocol, is_static
):
    cluster = make(ackers=4, timeout_s=120)

    def join(name):
        return cluster.join(**protocol, **({"group.instance.id": name} if is_static else {}))

    members, guests = [join("stays").await_ready()], {}
    load, changes = Load(cluster, seed=5), 0
    while changes < CHANGES or len(load.done) < ACKED_MEANWHILE:
        for _ in range(STEPS_A_CHANGE):
            load.step()
        changes += 1
        assert changes < MOST_CHANGES, f"only {len(load.done)} roots acked while ackers come and go"
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
    assert all(burner.poll() is None for burner in busy)
    assert cluster.failed == {}


@pytest.mark.timeout(240)
def test_ackers_killed_ten_times_under_load_ack_nothing_early_and_time_out_nothing(make):
    """Static members: who comes back under its name has its partitions at once, in the midst of any step."""
    cluster = make(ackers=2, timeout_s=120)
    options = [{"group.instance.id": name} for name in ("one", "two")]
    members = [cluster.start_process(**option) for option in options]
    members[0].await_ready()
    load, source = Load(cluster, seed=6), random.Random(6)
    for kill in range(10):
        victim = kill % 2
        for _ in range(source.randint(3, 20)):
            load.step()
        members[victim].kill()
        members[victim] = cluster.start_process(**options[victim])
    load.finish()
    assert cluster.failed == {}
    assert set(cluster.acked) == set(load.roots)


@pytest.mark.timeout(240)
def test_a_killed_static_member_rejoins_before_its_session_ends_with_kip_848(make):
    """The broker refuses the name until then, and that is final for a consumer: it has to be made anew.

    The second one is started before the first is killed: a start may take longer than a session.
    """
    cluster = make(ackers=2, timeout_s=600)
    options = {**PROTOCOLS["kip-848"], "group.instance.id": "only"}
    killed = cluster.start_process(**options).await_ready()
    back = cluster.start_process(**options)
    wait_for(
        lambda: "action=wait_for_instance_id id=only" in back.log(), "a refusal of the name", deadline_s=120
    )
    killed.kill()
    cluster.init_many([(root, 0) for root in range(1, 9)]).sent()
    cluster.await_acked(range(1, 9), deadline_s=120)
    assert cluster.failed == {}


@pytest.mark.timeout(240)
def test_an_acker_fenced_by_another_of_the_same_name_stops_with_one_sentence(make):
    """With the classic protocol the newcomer wins; who is fenced must not stay as if it served."""
    cluster = make(ackers=1, timeout_s=600)
    options = {"group.instance.id": "only"}
    first = cluster.start(**options)
    cluster.start(**options)
    wait_for(lambda: first.is_gone, "the end of the one that was fenced", deadline_s=120)
    assert isinstance(first.error, BrokerRefused)
    assert "fenced" in str(first.error).lower()
    cluster.init(1, 0).await_acked([1], deadline_s=120)


@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.promise("an acker")
def test_the_second_acker_takes_over_when_the_session_of_a_killed_one_ends(make):
    cluster = make(ackers=2, timeout_s=120)
    members = [cluster.start_process().await_ready(), cluster.start_process().await_ready()]
    load = Load(cluster, seed=6)
    wait_for(lambda: len(load.done) >= 300, "300 roots", step=load.step)
    members[0].kill()
    load.finish()
    assert cluster.failed == {}
