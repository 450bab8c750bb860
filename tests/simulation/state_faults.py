"""Faults of the state of a spout: topic, offsets of the group, checkpoints, each call of a commit.

Invariant: each strikes when it is called; ``System.heal`` ends what would keep a system from finishing.
"""

from functools import partial

from confluent_kafka import KafkaError

from acktree.testing.kafka.broker.log import PartitionLog
from acktree.testing.virtual.kernel import Process
from simulation.fault_plan import Fault, at_call, kind
from simulation.spark_faults import driver_of, restore_checkpoint
from simulation.spout_state import STRANGER, seal_of
from simulation.system import FailedCall, System
from simulation.topologies import SOURCE

COMMIT_CALLS = (
    "producer.begin_transaction",
    "producer.produce",
    "producer.commit_transaction",
    "consumer.commit",
    "spark.log_offset",
    "spark.latest_offset",
    "consumer.committed",
    "producer.init_transactions",
)
"""What a driver, or a task in Python, calls for one commit, and around it; the first four in this order."""
START_CALLS = (
    "admin.describe_topics",
    "admin.list_offsets",
    "admin.list_topics",
    "consumer.commit",
    "consumer.committed",
    "consumer.get_watermark_offsets",
    "consumer.incremental_assign",
    "consumer.list_topics",
    "producer.commit_transaction",
)
"""What a driver calls between its take-over and the end of its start, and what may fail there."""
MAX_FAILED_STARTS = 30
"""How many starts in a row fail at most, each at the call behind the one before."""
OWNERS = {"spark": "driver", "spout": "task in Python"}
"""Who commits a state, by the kind of its role."""


def _is_meant(system: System, fault: Fault) -> tuple[str, int]:
    """Return the call that a fault is about, and how many of them go before."""
    calls = [call for call in COMMIT_CALLS if system.is_spark or not call.startswith("spark.")]
    return calls[fault.target % len(calls)], fault.number % (12 if system.is_spark else 4)


def _owner(system: System, caller: Process) -> str:
    """Return what a process is that commits the state of a spout, "" if it does not."""
    role = next((role for role in system.roles if role.process is caller), None)
    return OWNERS.get(role.kind, "") if role is not None else ""


@kind("kill the driver in a commit")
def _kill(system: System, fault: Fault) -> None:
    """Kill it before a call, or when what it has called is done and the answer is under way."""
    call, count = _is_meant(system, fault)

    def is_its(caller: Process, name: str) -> bool:
        return name == call and bool(_owner(system, caller))

    def strike(caller: Process) -> None:
        system.checker.count(f"{_owner(system, caller)} killed in a commit")
        system.kernel.kill(caller)

    if fault.seconds * 1000 % 2 < 1 or call.startswith("spark."):
        at_call(system, is_its, count, strike)
        return
    before, left = system.world.lose_response, count

    def lose(asking: Process, name: str) -> bool:
        nonlocal left
        if left >= 0 and is_its(asking, name):
            left -= 1
            if left < 0:
                strike(asking)
        return before(asking, name)

    system.world.lose_response = lose


@kind("stop the driver in a commit")
def _stop(system: System, fault: Fault) -> None:
    """It hangs before a call, its successor starts, and then it goes on: a zombie with half a commit."""
    call, count = _is_meant(system, fault)

    def strike(caller: Process) -> None:
        role = next((role for role in system.roles if role.process is caller), None)
        if role is not None and not system.stage_temper.is_healed:
            system.checker.count(f"{_owner(system, caller)} hung in a commit")
            system.kernel.stop(caller, max(min(fault.seconds, 12.0), 1.0))
            system.start(role)

    at_call(system, lambda caller, name: name == call and bool(_owner(system, caller)), count, strike)


@kind("time out the driver's transaction")
def _time_out(system: System, fault: Fault) -> None:
    """The broker ends its transaction just before it commits it."""

    def strike(caller: Process) -> None:
        kept = system.spout_group if system.is_spark else f"{system.spout_group}.{caller.name[-1]}"
        entry = system.cluster.transactions.ids.get(kept)
        if entry is not None and entry.transaction is not None and not entry.is_ending:
            system.checker.count(f"transaction of a {_owner(system, caller)} timed out")
            system.cluster.transactions.time_out(entry)

    def is_meant(caller: Process, name: str) -> bool:
        return name == "producer.commit_transaction" and bool(_owner(system, caller))

    at_call(system, is_meant, fault.number % (12 if system.is_spark else 4), strike)


def _log(system: System) -> PartitionLog | None:
    topic = system.cluster.topics.get(system.checker.state.topic)
    return topic.partitions[0] if topic is not None else None


@kind("compact the state")
def _compact(system: System, _fault: Fault) -> None:
    if (log := _log(system)) is not None:
        log.compact()


@kind("hold the state up")
def _hold_up(system: System, fault: Fault) -> None:
    """A stranger's transaction on the state topic, later aborted: nobody can read to the end meanwhile."""
    if (log := _log(system)) is None:
        return
    coordinator, name = system.cluster.transactions, f"stranger-{fault.at_s}-state"
    identity = coordinator.init(name, 60_000)
    entry = coordinator.begin(name, *identity) if identity is not None else None
    if entry is not None:
        entry.partitions[log] = None
        log.append(b"k", b"stranger", (), None, entry.transaction, STRANGER)
        system.kernel.call_after(min(fault.seconds, 20.0), partial(coordinator.time_out, entry))


@kind("damage the state for a while")
def _damage(system: System, fault: Fault) -> None:
    """A record cannot be read, until an operator brings an intact replica back: no driver can start."""
    log = _log(system)
    records = [record for record in log.records if not record.is_control] if log is not None else []
    if records:
        record = records[-1 - fault.number % len(records)]
        record.is_damaged = True
        system.checker.count("state damaged")
        system.kernel.call_after(min(fault.seconds, 20.0), lambda: setattr(record, "is_damaged", False))


@kind("forget the offsets of the spout")
def _forget_offsets(system: System, _fault: Fault) -> None:
    """Retention or an operator deletes what the group has; not while it is all that knows of a rewind."""
    if not system.is_spark or system.spout_group not in system.cluster.groups:
        return
    offsets = system.cluster.group(system.spout_group).offsets
    seals = [seal_of(committed) for (topic, _), committed in offsets.items() if topic == SOURCE]
    if seals and all(seals):
        system.checker.count("offsets of the spout forgotten")
        offsets.clear()


@kind("change checkpoints")
def _change_checkpoints(system: System, _fault: Fault) -> None:
    """Somebody starts the application with another checkpoint, and next time with the one before."""
    role = next((role for role in system.roles if role.kind == "spark"), None)
    if role is None:
        return
    kept, system.other_checkpoint = system.other_checkpoint, system.checkpoints[role.name]
    system.checkpoints[role.name] = kept
    system.checker.count("checkpoints changed")
    if role.process is not None:
        system.kernel.kill(role.process)


@kind("fail starts of the driver")
def _fail_starts(system: System, fault: Fault) -> None:
    """A call of a start fails, in the next start the one behind it, and so on, until Spark logs a batch.

    The process keeps running: Spark closes the driver and starts another one. Half of the time somebody has
    restored an older checkpoint before.
    """
    if (role := driver_of(system)) is None:
        return
    if role.process is not None:
        system.kernel.kill(role.process)
    if fault.target % 2:
        restore_checkpoint(system, fault)
    code = KafkaError.UNKNOWN if fault.number % 4 < 2 else KafkaError._TIMED_OUT
    before, failed, calls, is_started = system.kernel.on_call, 0, 0, True

    def on_call(caller: Process, call: str) -> None:
        nonlocal failed, calls, is_started
        before(caller, call)
        if caller.name != "spark" or failed == MAX_FAILED_STARTS:
            return
        if call == "producer.init_transactions":
            calls, is_started = 0, False
        elif call == "spark.log_offset":
            failed = MAX_FAILED_STARTS
        elif not is_started and call in START_CALLS:
            calls += 1
            if calls > failed:
                failed, is_started = failed + 1, True
                system.checker.count("driver failed in its start")
                raise FailedCall(KafkaError(code, "a fault"))

    system.kernel.on_call = on_call
