"""The faults of a search: what strikes a system, where and when.

Invariant: a plan is a list of plain values, so that it can be printed, cut down, and kept as a test.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from acktree.testing.kernel import Process
from acktree.testing.search.system import Role, System
from confluent_kafka import KafkaError, KafkaException

FAULTY_S = 15.0
"""For how long faults may strike, in virtual time."""

CRASH_CALLS = (
    "producer.produce",
    "producer.flush",
    "producer.poll",
    "producer.begin_transaction",
    "producer.send_offsets_to_transaction",
    "producer.commit_transaction",
    "producer.abort_transaction",
    "producer.init_transactions",
    "consumer.consume",
    "consumer.poll",
    "consumer.commit",
    "consumer.committed",
    "consumer.position",
    "consumer.subscribe",
    "consumer.assign",
    "consumer.seek",
    "consumer.close",
)
LOST_RESPONSES = (
    "consumer.commit",
    "consumer.committed",
    "producer.commit_transaction",
    "producer.send_offsets_to_transaction",
    "producer.init_transactions",
    "producer.abort_transaction",
    "admin.list_offsets",
    "admin.list_topics",
)


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, whom it strikes, and its numbers."""

    kind: str
    target: int = 0
    """Which role, modulo how many there are."""
    at_s: float = 0.0
    number: int = 0
    seconds: float = 0.0
    call: str = ""


Striker = Callable[[System, Fault], None]
KINDS: dict[str, Striker] = {}


def kind(name: str) -> Callable[[Striker], Striker]:
    """Name a kind of fault."""

    def add(strike: Striker) -> Striker:
        KINDS[name] = strike
        return strike

    return add


def draw_faults(draw: random.Random) -> list[Fault]:
    """Return a random plan: a random subset of kinds, some of each (FoundationDB's swarm testing)."""
    kinds = [name for name in KINDS if draw.random() < draw.choice([0.1, 0.3])]
    plan = []
    for name in kinds:
        for _ in range(draw.choice([1, 1, 2, 4])):
            calls = LOST_RESPONSES if name == "lose responses" else CRASH_CALLS
            plan.append(
                Fault(
                    name,
                    draw.randrange(1000),
                    round(draw.uniform(0.0, FAULTY_S), 3),
                    draw.choice([draw.randrange(10), draw.randrange(100), draw.randrange(1000)]),
                    round(draw.choice([draw.uniform(0, 1), draw.uniform(0, 12), draw.uniform(0, 40)]), 3),
                    draw.choice(calls),
                )
            )
    return sorted(plan, key=lambda fault: fault.at_s)


def schedule(system: System, plan: list[Fault]) -> None:
    """Let every fault of a plan strike at its time."""
    for fault in plan:

        def strike(fault: Fault = fault) -> None:
            system.judge.count(f"fault: {fault.kind}")
            system.judge.note(f"fault {fault}")
            KINDS[fault.kind](system, fault)

        system.kernel.call_after(fault.at_s, strike)


def _role(system: System, fault: Fault, *kinds: str) -> Role:
    roles = [role for role in system.roles if not kinds or role.kind in kinds]
    return roles[fault.target % len(roles)]


def _at_call(system: System, process: Process, call: str, count: int, strike: Callable[[], None]) -> None:
    """Strike when a process makes a call for the ``count``-th time from now on."""
    before = system.kernel.on_call
    left = count

    def on_call(caller: Process, name: str) -> None:
        nonlocal left
        before(caller, name)
        if caller is process and (not call or name == call) and left >= 0:
            left -= 1
            if left < 0:
                strike()

    system.kernel.on_call = on_call


@kind("kill")
def _kill(system: System, fault: Fault) -> None:
    if (process := _role(system, fault).process) is not None:
        system.kernel.kill(process)


@kind("kill before a call")
def _kill_at_call(system: System, fault: Fault) -> None:
    process = _role(system, fault).process
    if process is not None:
        _at_call(system, process, fault.call, fault.number % 20, lambda: system.kernel.kill(process))


@kind("kill after some calls")
def _kill_after_calls(system: System, fault: Fault) -> None:
    process = _role(system, fault).process
    if process is not None:
        _at_call(system, process, "", fault.number, lambda: system.kernel.kill(process))


@kind("kill an acker")
def _kill_acker(system: System, fault: Fault) -> None:
    if (process := _role(system, fault, "acker").process) is not None:
        system.kernel.kill(process)


@kind("kill a spout")
def _kill_spout(system: System, fault: Fault) -> None:
    if (process := _role(system, fault, "spout").process) is not None:
        system.kernel.kill(process)


@kind("kill everything")
def _kill_all(system: System, _fault: Fault) -> None:
    for role in system.roles:
        if role.process is not None:
            system.kernel.kill(role.process)


@kind("stop a process")
def _stop(system: System, fault: Fault) -> None:
    if (process := _role(system, fault).process) is not None:
        system.kernel.stop(process, fault.seconds)


@kind("replace a stopped process")
def _zombie(system: System, fault: Fault) -> None:
    """A process hangs, its successor starts, and then it goes on: a zombie."""
    role = _role(system, fault)
    if role.process is not None:
        system.kernel.stop(role.process, max(fault.seconds, 1.0))
        system.start(role)


@kind("restart in order")
def _restart(system: System, fault: Fault) -> None:
    role = _role(system, fault)
    if role.service is not None:
        role.service.stop()


@kind("broker away")
def _broker_away(system: System, fault: Fault) -> None:
    system.cluster.is_up = False
    system.kernel.call_after(fault.seconds, lambda: setattr(system.cluster, "is_up", True))


@kind("lose responses")
def _lose_responses(system: System, fault: Fault) -> None:
    before, left = system.world.lose_response, 1 + fault.number % 3

    def lose(process: Process, call: str) -> bool:
        nonlocal left
        if call == fault.call and left > 0:
            left -= 1
            return True
        return before(process, call)

    system.world.lose_response = lose


@kind("slow markers")
def _slow_markers(system: System, fault: Fault) -> None:
    system.cluster.transactions.marker_delay_s = lambda: system.kernel.random.uniform(
        0, min(fault.seconds, 5.0)
    )


@kind("step a process's clock")
def _step_clock(system: System, fault: Fault) -> None:
    if (process := _role(system, fault).process) is not None:
        process.clock_step_s = (fault.seconds + 1) * (60 if fault.number % 2 else -60)


@kind("step the broker's clock")
def _step_broker(system: System, fault: Fault) -> None:
    system.cluster.clock_step_s = fault.seconds if fault.number % 2 else -fault.seconds


@kind("end a session")
def _end_session(system: System, fault: Fault) -> None:
    groups = [group for _, group in sorted(system.cluster.groups.items()) if group.members]
    if groups:
        group = groups[fault.target % len(groups)]
        members = sorted(group.members)
        group.leave(members[fault.number % len(members)])


@kind("grow a topic")
def _grow(system: System, fault: Fault) -> None:
    names = sorted(system.judge.readers)
    name = names[fault.target % len(names)]
    count = len(system.cluster.topics[name].partitions)
    if count < 8:
        system.cluster.grow_topic(name, count + 1)


@kind("another transaction")
def _hanging_transaction(system: System, fault: Fault) -> None:
    """A stranger's transaction holds a topic's last stable offset back."""
    names = sorted(system.judge.readers)
    topic = system.cluster.topics[names[fault.target % len(names)]]
    log = topic.partitions[fault.number % len(topic.partitions)]
    coordinator = system.cluster.transactions
    name = f"stranger-{fault.at_s}"
    identity = coordinator.init(name, int(max(fault.seconds, 0.1) * 1000))
    assert identity is not None
    entry = coordinator.begin(name, *identity)
    assert entry is not None
    entry.partitions[log] = None
    log.append(None, b"stranger", (), None, entry.transaction, "stranger")
    if fault.number % 2:
        system.kernel.call_after(
            min(fault.seconds, 0.09),
            lambda: coordinator.end(name, *identity, is_commit=bool(fault.number % 3)),
        )


@kind("compact the registry")
def _compact(system: System, _fault: Fault) -> None:
    for log in system.cluster.topics["t.topology"].partitions:
        log.compact()


@kind("repeat an init")
def _repeat_init(system: System, fault: Fault) -> None:
    _repeat(system, "t.ack-init", fault)


@kind("repeat an ack")
def _repeat_ack(system: System, fault: Fault) -> None:
    _repeat(system, "t.ack", fault)


def _repeat(system: System, topic: str, fault: Fault) -> None:
    """Append a control record again, as a client does whose producer's state a broker has lost."""
    logs = system.cluster.topics[topic].partitions
    log = logs[fault.target % len(logs)]
    records = [record for record in log.records if not record.is_control and record.is_committed]
    if records:
        record = records[-1 - fault.number % min(len(records), 20)]
        log.append(record.key, record.value, record.headers, None, None, "repeated")


@kind("refuse a commit")
def _refuse_commit(system: System, fault: Fault) -> None:
    process = _role(system, fault, "acker", "worker").process
    if process is None:
        return

    def refuse() -> None:
        raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))

    _at_call(system, process, "consumer.commit", fault.number % 5, refuse)


@kind("change the topology")
def _change_topology(system: System, fault: Fault) -> None:
    changes = {0: {"ackers": 1 + fault.target % 5}, 1: {"message_timeout_s": 3.0 + fault.target % 20}}
    system.topology = system.topology.model_copy(update=changes[fault.number % 2])
    if system.topology.ackers < len(system.cluster.topics["t.ack"].partitions):
        system.judge.count("acker count reduced")
    system.apply(system.topology)
