"""The faults of a search: what strikes a system, where and when.

Invariant: a plan is a list of plain values, so that it can be printed, cut down, and kept as a test.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException

from acktree.testing.kafka.log import PartitionLog
from acktree.testing.kafka.transactions import Refused
from acktree.testing.kernel import Process
from acktree.testing.search.actors import Mind
from acktree.testing.search.system import NAME, SOURCE, Role, System
from acktree.testing.spark_stub import Checkpoint, SparkApplication

FAULTY_S = 12.0
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
    if (process := _role(system, fault, "spout", "spark").process) is not None:
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
    _write_transaction(system, fault, topic.partitions[fault.number % len(topic.partitions)], b"stranger")


def _write_transaction(system: System, fault: Fault, log: PartitionLog, value: bytes) -> None:
    coordinator = system.cluster.transactions
    name = f"stranger-{fault.at_s}-{log.topic.name}"
    identity = coordinator.init(name, int(max(fault.seconds, 0.1) * 1000))
    entry = coordinator.begin(name, *identity) if identity is not None else None
    if identity is None or entry is None:
        return
    entry.partitions[log] = None
    log.append(b"k", value, (), None, entry.transaction, "stranger")
    if fault.number % 2:

        def end() -> None:
            with suppress(Refused):  # an operator has fenced it meanwhile
                coordinator.end(name, *identity, is_commit=bool(fault.number % 3))

        system.kernel.call_after(min(fault.seconds, 0.09), end)


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


@kind("change the number of ackers")
def _change_ackers(system: System, fault: Fault) -> None:
    if 1 + fault.target % 5 < system.topology.ackers:
        system.judge.count("acker count reduced")
    _change(system, ackers=1 + fault.target % 5)


@kind("change the message timeout")
def _change_timeout(system: System, fault: Fault) -> None:
    _change(system, message_timeout_s=3.0 + fault.target % 20)


def _change(system: System, **settings: object) -> None:
    system.topology = system.topology.model_copy(update=settings)
    system.apply(system.topology)


@kind("slow network")
def _slow_network(system: System, fault: Fault) -> None:
    longest_s = min(fault.seconds, 3.0)
    system.world.delay_s = lambda: system.kernel.random.uniform(0, longest_s)
    system.kernel.call_after(5.0, lambda: setattr(system.world, "delay_s", system.delay_s))


@kind("cut a process off")
def _cut_off(system: System, fault: Fault) -> None:
    process = _role(system, fault).process
    if process is not None:
        system.world.cut_off.add(process)
        system.kernel.call_after(fault.seconds, lambda: system.world.cut_off.discard(process))


@kind("delete old control records")
def _delete_control(system: System, _fault: Fault) -> None:
    """Retention that never deletes what a new owner has to fold again."""
    offsets = system.cluster.group(f"{NAME}.acker").offsets
    for (topic, number), committed in offsets.items():
        if topic in system.cluster.topics:
            system.cluster.topics[topic].partitions[number].delete_before(committed.offset)


@kind("delete read results")
def _delete_results(system: System, _fault: Fault) -> None:
    for group in system.cluster.groups.values():
        for (topic, number), committed in group.offsets.items():
            if topic in system.judge.result_topics:
                system.cluster.topics[topic].partitions[number].delete_before(committed.offset)


@kind("forget the offsets of an empty group")
def _forget_offsets(system: System, fault: Fault) -> None:
    names = [name for name, group in sorted(system.cluster.groups.items()) if not group.members]
    tables = system.topology.bolts
    at_least_once = {f"{NAME}.{bolt}" for bolt, table in tables.items() if not table.exactly_once}
    bolts = [name for name in names if name in at_least_once]
    if bolts:
        system.judge.count("offsets of a bolt forgotten")
        system.cluster.groups[bolts[fault.target % len(bolts)]].offsets.clear()


@kind("start a second process")
def _second(system: System, fault: Fault) -> None:
    """An operator starts a role twice; the first goes on, and nobody restarts it."""
    system.start(_role(system, fault))


@kind("stop everything")
def _stop_all(system: System, fault: Fault) -> None:
    for role in system.roles:
        if role.process is not None:
            system.kernel.stop(role.process, fault.seconds)


@kind("restart everything in order")
def _restart_all(system: System, _fault: Fault) -> None:
    for role in system.roles:
        if role.service is not None:
            role.service.stop()


@kind("kill before an answer")
def _kill_before_answer(system: System, fault: Fault) -> None:
    """What was asked for is done, and who asked never hears of it."""
    before, process = system.world.lose_response, _role(system, fault).process
    left = fault.number % 10

    def lose(asking: Process, call: str) -> bool:
        nonlocal left
        if asking is process and left >= 0:
            left -= 1
            if left < 0:
                system.kernel.kill(asking)
        return before(asking, call)

    system.world.lose_response = lose


@kind("bad deploy")
def _bad_deploy(system: System, fault: Fault) -> None:
    temper = _mind(system, fault).temper
    before, temper.fail = temper.fail, 1.0
    system.kernel.call_after(min(fault.seconds, 6.0), lambda: setattr(temper, "fail", before))


@kind("slow bolt")
def _slow_bolt(system: System, fault: Fault) -> None:
    temper = _mind(system, fault).temper
    before, temper.slow = temper.slow, 0.5
    system.kernel.call_after(min(fault.seconds, 6.0), lambda: setattr(temper, "slow", before))


def _mind(system: System, fault: Fault) -> Mind:
    minds = list(system.minds.values())
    return minds[fault.target % len(minds)]


@kind("fence a transactional id")
def _fence(system: System, fault: Fault) -> None:
    names = sorted(system.cluster.transactions.ids)
    name = names[fault.target % len(names)]
    system.cluster.transactions.init(name, 60_000)


@kind("abort a transaction")
def _abort(system: System, fault: Fault) -> None:
    """An operator's kafka-transactions --abort."""
    open_ones = [
        entry
        for _, entry in sorted(system.cluster.transactions.ids.items())
        if entry.transaction is not None and not entry.is_ending
    ]
    if open_ones:
        system.cluster.transactions.time_out(open_ones[fault.target % len(open_ones)])


@kind("move a coordinator")
def _move_coordinator(system: System, fault: Fault) -> None:
    code = [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    ][fault.number % 3]
    calls = ("consumer.commit", "consumer.committed")

    def refuse() -> None:
        raise KafkaException(KafkaError(code))

    for role in system.roles:
        if role.process is not None:
            _at_call(system, role.process, calls[fault.target % 2], 0, refuse)


@kind("read a bolt's offsets anew")
def _reset_offsets(system: System, fault: Fault) -> None:
    """An operator rewinds a stopped bolt to the beginning."""
    names = [
        f"{NAME}.{bolt}" for bolt in system.topology.bolts if not system.topology.bolts[bolt].exactly_once
    ]
    if not names:
        return
    group = system.cluster.group(names[fault.target % len(names)])
    if not group.members:
        system.judge.count("bolt rewound")
        for place, committed in group.offsets.items():
            group.offsets[place] = replace(committed, offset=0, metadata="")


@kind("wait for silence")
def _silence(system: System, fault: Fault) -> None:
    """No spout emits for a while."""
    for messages in system.messages.values():
        messages.silent_until_s = system.kernel.now_s + fault.seconds


@kind("stop the broker's clock")
def _stop_clock(system: System, fault: Fault) -> None:
    """The broker's clock stands still, then leaps."""
    began_s = system.kernel.now_s

    def tick() -> None:
        gone_s = system.kernel.now_s - began_s
        if gone_s < fault.seconds:
            system.cluster.clock_step_s = -gone_s
            system.kernel.call_after(0.05, tick)
        else:
            system.cluster.clock_step_s = 0.0

    tick()


# Spark.


def _application(system: System) -> SparkApplication | None:
    role = next((role for role in system.roles if role.kind == "spark"), None)
    return None if role is None else role.service


@kind("kill the driver")
def _kill_driver(system: System, fault: Fault) -> None:
    role = next((role for role in system.roles if role.kind == "spark"), None)
    if role is not None and role.process is not None:
        system.outlive_s = fault.seconds if fault.number % 3 == 0 else 0.0
        system.kernel.kill(role.process)


@kind("lose the checkpoint")
def _lose_checkpoint(system: System, fault: Fault) -> None:
    _kill_driver(system, fault)
    system.checkpoint = Checkpoint()


@kind("lose an executor")
def _lose_executor(system: System, fault: Fault) -> None:
    application = _application(system)
    if application is not None and application.executors.all:
        executors = application.executors
        executors.lose(executors.all[fault.target % len(executors.all)])


@kind("kill a process of a task")
def _kill_task(system: System, fault: Fault) -> None:
    application = _application(system)
    if application is not None and application.processes:
        system.kernel.kill(application.processes[fault.target % len(application.processes)])


@kind("kill a task at a call")
def _kill_task_at_call(system: System, fault: Fault) -> None:
    """Kill whichever process of a task makes the n-th call from now on."""
    before, left = system.kernel.on_call, fault.number % 60

    def on_call(caller: Process, name: str) -> None:
        nonlocal left
        before(caller, name)
        if ".executor-" in caller.name and left >= 0:
            left -= 1
            if left < 0:
                system.judge.count("task killed between calls")
                system.kernel.kill(caller)

    system.kernel.on_call = on_call


@kind("stop a process of a task")
def _stop_task(system: System, fault: Fault) -> None:
    application = _application(system)
    if application is not None and application.processes:
        process = application.processes[fault.target % len(application.processes)]
        system.kernel.stop(process, fault.seconds)


@kind("speculate")
def _speculate(system: System, fault: Fault) -> None:
    system.speculation = 0.5
    system.kernel.call_after(fault.seconds, lambda: setattr(system, "speculation", 0.0))


@kind("start a second driver")
def _second_driver(system: System, _fault: Fault) -> None:
    role = next((role for role in system.roles if role.kind == "spark"), None)
    if role is not None:
        system.start(role)


@kind("rewind the source")
def _rewind(system: System, fault: Fault) -> None:
    """An operator stops the application, commits older offsets, and starts it again."""
    _move(
        system,
        fault,
        lambda offset, log: log.start_offset + fault.target % max(1, offset - log.start_offset + 1),
    )


@kind("skip source records")
def _skip(system: System, fault: Fault) -> None:
    _move(system, fault, lambda offset, log: min(offset + fault.target % 5, log.end_offset))


def _move(system: System, fault: Fault, choose: Callable[[int, PartitionLog], int]) -> None:
    role = next((role for role in system.roles if role.kind == "spark"), None)
    if role is None or not role.is_wanted:
        return
    role.is_wanted = False
    if role.service is not None:
        role.service.stop()

    def move() -> None:
        process = role.process
        if process is not None and process.tasks:
            system.kernel.kill(process)
        group = system.cluster.group(system.spout_group)
        for place, committed in list(group.offsets.items()):
            if place[0] != SOURCE:
                continue
            log = system.cluster.topics[SOURCE].partitions[place[1]]
            offset = choose(committed.offset, log)
            system.judge.count("source rewound" if offset < committed.offset else "source skipped")
            if offset < committed.offset:
                system.judge.rewind(*place, offset)
            else:
                system.judge.skip(*place, offset)
            group.offsets[place] = replace(committed, offset=offset, metadata="")
        role.is_wanted = True
        if role.process is None:
            system.kernel.call_after(0.5, lambda: system.start_again(role))

    system.kernel.call_after(3.0, move)


@kind("truncate the source")
def _truncate(system: System, fault: Fault) -> None:
    """Retention deletes what is done, and nothing else: the rest would be lost for everybody."""
    group = system.cluster.group(system.spout_group)
    for (topic, number), committed in group.offsets.items():
        if topic == SOURCE and fault.number % 2:
            system.cluster.topics[topic].partitions[number].delete_before(committed.offset)


@kind("compact the source")
def _compact_source(system: System, _fault: Fault) -> None:
    if SOURCE in system.cluster.topics:
        for log in system.cluster.topics[SOURCE].partitions:
            log.compact()


@kind("grow the source")
def _grow_source(system: System, _fault: Fault) -> None:
    if SOURCE in system.cluster.topics and len(system.cluster.topics[SOURCE].partitions) < 5:
        system.cluster.grow_topic(SOURCE, len(system.cluster.topics[SOURCE].partitions) + 1)


@kind("transactions in the source")
def _source_transaction(system: System, fault: Fault) -> None:
    """A writer's transaction in the source: open for a while, then committed or aborted."""
    if SOURCE in system.cluster.topics:
        logs = system.cluster.topics[SOURCE].partitions
        _write_transaction(system, fault, logs[fault.target % len(logs)], b"x%d|" % fault.number)
