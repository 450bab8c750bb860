"""Faults of the broker and of the network: what is away, late, lost, repeated, refused or deleted.

Invariant: each strikes when it is called; ``System.heal`` ends what would keep a system from finishing.
"""

from confluent_kafka import KafkaError, KafkaException

from acktree.testing.kafka.broker.log import PartitionLog
from acktree.testing.virtual.kernel import Process
from simulation.fault_plan import Fault, at_call, kind, of_process, role_of, write_transaction
from simulation.system import System
from simulation.topologies import NAME


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


@kind("slow network")
def _slow_network(system: System, fault: Fault) -> None:
    longest_s = min(fault.seconds, 3.0)
    system.world.delay_s = lambda: system.kernel.random.uniform(0, longest_s)
    system.kernel.call_after(5.0, lambda: setattr(system.world, "delay_s", system.delay_s))


@kind("slow markers")
def _slow_markers(system: System, fault: Fault) -> None:
    system.cluster.transactions.marker_delay_s = lambda: system.kernel.random.uniform(
        0, min(fault.seconds, 5.0)
    )


@kind("step the broker's clock")
def _step_broker(system: System, fault: Fault) -> None:
    system.checker.retries.is_time_true = False
    system.cluster.clock_step_s = fault.seconds if fault.number % 2 else -fault.seconds


@kind("stop the broker's clock")
def _stop_clock(system: System, fault: Fault) -> None:
    """The broker's clock stands still, then leaps."""
    system.checker.retries.is_time_true = False
    began_s = system.kernel.now_s

    def tick() -> None:
        gone_s = system.kernel.now_s - began_s
        if gone_s < fault.seconds:
            system.cluster.clock_step_s = -gone_s
            system.kernel.call_after(0.05, tick)
        else:
            system.cluster.clock_step_s = 0.0

    tick()


@kind("end a session")
def _end_session(system: System, fault: Fault) -> None:
    groups = [group for _, group in sorted(system.cluster.groups.items()) if group.members]
    if groups:
        group = groups[fault.target % len(groups)]
        members = sorted(group.members)
        group.leave(members[fault.number % len(members)])


@kind("refuse a commit")
def _refuse_commit(system: System, fault: Fault) -> None:
    process = role_of(system, fault, "acker", "worker").process
    if process is None:
        return

    def refuse(_caller: Process) -> None:
        raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))

    at_call(system, of_process(process, "consumer.commit"), fault.number % 5, refuse)


@kind("move a coordinator")
def _move_coordinator(system: System, fault: Fault) -> None:
    code = [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    ][fault.number % 3]
    calls = ("consumer.commit", "consumer.committed")

    def refuse(_caller: Process) -> None:
        raise KafkaException(KafkaError(code))

    for role in system.roles:
        if role.process is not None:
            at_call(system, of_process(role.process, calls[fault.target % 2]), 0, refuse)


@kind("another transaction")
def _hanging_transaction(system: System, fault: Fault) -> None:
    """A stranger's transaction holds a topic's last stable offset back."""
    names = sorted(system.checker.readers)
    topic = system.cluster.topics[names[fault.target % len(names)]]
    write_transaction(system, fault, topic.partitions[fault.number % len(topic.partitions)], b"stranger")


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


@kind("compact the registry")
def _compact(system: System, _fault: Fault) -> None:
    for log in system.cluster.topics["t.topology"].partitions:
        log.compact()


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
            if topic in system.checker.result_topics:
                system.cluster.topics[topic].partitions[number].delete_before(committed.offset)


@kind("forget the offsets of an empty group")
def _forget_offsets(system: System, fault: Fault) -> None:
    names = [name for name, group in sorted(system.cluster.groups.items()) if not group.members]
    tables = system.topology.bolts
    at_least_once = {f"{NAME}.{bolt}" for bolt, table in tables.items() if not table.exactly_once}
    bolts = [name for name in names if name in at_least_once]
    if bolts:
        system.checker.count("offsets of a bolt forgotten")
        group = system.cluster.groups[bolts[fault.target % len(bolts)]]
        group.offsets.clear()
        system.checker.repeats.forgive(group.name)


@kind("damage a tuple")
def _damage(system: System, fault: Fault) -> None:
    """The bytes of a record change in the log: whoever has not read it yet never can."""
    if log := _tuple_log(system, fault):
        records = [record for record in log.records if not record.is_control]
        if records:
            record = records[-1 - fault.number % min(len(records), 10)]
            system.checker.count("tuple damaged")
            log.damage(record.offset)
            system.checker.lose(log, record.offset, record.offset + 1)


@kind("truncate a tuple topic")
def _truncate(system: System, fault: Fault) -> None:
    """The end of a log is lost, as with a leader that had fallen behind, and its offsets come again."""
    if log := _tuple_log(system, fault):
        first = max(log.start_offset, log.end_offset - 1 - fault.number % 5)
        if first < log.end_offset:
            system.checker.count("tuples truncated")
            system.checker.truncate(log, first)


def _tuple_log(system: System, fault: Fault) -> PartitionLog | None:
    """Return a log of tuples that workers read: Spark asks whether data may be lost."""
    names = [name for name, bolts in sorted(system.checker.readers.items()) if system.spark_bolt not in bolts]
    if not names:
        return None
    partitions = system.cluster.topics[names[fault.target % len(names)]].partitions
    return partitions[fault.number % len(partitions)]
