"""Faults of Spark applications and of their source: drivers, executors, checkpoints, rewinds.

Invariant: each strikes when it is called; ``System.heal`` ends what would keep a system from finishing.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from acktree.testing.kafka.broker.assignors import Place
from acktree.testing.kafka.broker.committed import Committed
from acktree.testing.kafka.broker.log import PartitionLog
from acktree.testing.spark.spark_stub import Checkpoint, SparkApplication
from acktree.testing.virtual.kernel import Process
from simulation.fault_plan import SECOND_BOLT_DRIVER, Fault, at_call, kind, write_transaction
from simulation.spout_state import seal_of
from simulation.system import Role, System
from simulation.topologies import SOURCE


def driver_of(system: System) -> Role | None:
    return next((role for role in system.roles if role.kind == "spark"), None)


def _any_driver(system: System, fault: Fault) -> Role | None:
    """Return the driver that a fault strikes, of a spout or a bolt."""
    roles = [role for role in system.roles if role.kind in ("spark", "spark bolt")]
    return roles[fault.number % len(roles)] if roles else None


def _application(system: System, fault: Fault) -> SparkApplication | None:
    role = _any_driver(system, fault)
    return role.service if role is not None and isinstance(role.service, SparkApplication) else None


@kind("kill the driver")
def _kill_driver(system: System, fault: Fault) -> None:
    role = _any_driver(system, fault)
    if role is not None and role.process is not None:
        system.outlive_s = fault.seconds if fault.number % 3 == 0 else 0.0
        system.kernel.kill(role.process)


@kind("lose the checkpoint")
def _lose_checkpoint(system: System, fault: Fault) -> None:
    _kill_driver(system, fault)
    role = _any_driver(system, fault)
    if role is None:
        return
    if role.kind == "spark bolt":  # one that goes on with the old checkpoint is a second driver, see there
        system.kernel.kill_all([each for each in system.kernel.processes if each.name == role.name])
    system.checkpoints[role.name] = Checkpoint()


@kind("older checkpoint")
def restore_checkpoint(system: System, fault: Fault) -> None:
    """Somebody restores a backup: the next driver begins with a checkpoint that lacks the newest batches."""
    role = driver_of(system)
    newest = system.checkpoints["spark"]
    if role is None or len(newest.offsets) < 2:
        return
    if role.process is not None:
        system.kernel.kill(role.process)
    kept = sorted(newest.offsets)[: 1 + fault.number % (len(newest.offsets) - 1)]
    system.checker.count("older checkpoint")
    system.checkpoints[role.name] = Checkpoint(
        newest.query,
        {batch: newest.offsets[batch] for batch in kept},
        {batch for batch in newest.commits if batch <= kept[-1]},
    )


@kind("lose an executor")
def _lose_executor(system: System, fault: Fault) -> None:
    application = _application(system, fault)
    if application is not None and application.executors.all:
        executors = application.executors
        executors.lose(executors.all[fault.target % len(executors.all)])


@kind("kill a process of a task")
def _kill_task(system: System, fault: Fault) -> None:
    application = _application(system, fault)
    if application is not None and application.processes:
        system.kernel.kill(application.processes[fault.target % len(application.processes)])


@kind("kill a task at a call")
def _kill_task_at_call(system: System, fault: Fault) -> None:
    """Kill whichever process of a task makes the n-th call from now on."""

    def strike(caller: Process) -> None:
        system.checker.count("task killed between calls")
        system.kernel.kill(caller)

    at_call(system, lambda caller, _call: ".executor-" in caller.name, fault.number % 60, strike)


@kind("stop a process of a task")
def _stop_task(system: System, fault: Fault) -> None:
    application = _application(system, fault)
    if application is not None and application.processes:
        process = application.processes[fault.target % len(application.processes)]
        system.kernel.stop(process, fault.seconds)


@kind("speculate")
def _speculate(system: System, fault: Fault) -> None:
    system.speculation = 0.5
    system.kernel.call_after(fault.seconds, lambda: setattr(system, "speculation", 0.0))


@kind("cut off tasks' inputs")
def _cut_off(system: System, fault: Fault) -> None:
    """What stands between reading and writing tasks fails half-way, for a while."""
    system.cutting = 0.4
    system.kernel.call_after(fault.seconds, lambda: setattr(system, "cutting", 0.0))


@kind("start a second driver")
def _second_driver(system: System, _fault: Fault) -> None:
    role = driver_of(system)
    if role is not None:
        system.start(role)


@kind(SECOND_BOLT_DRIVER, is_opt_in=True)
def _second_bolt_driver(system: System, _fault: Fault) -> None:
    """Somebody starts a bolt's Spark application once more, with a checkpoint of its own; both go on."""
    role = next((role for role in system.roles if role.kind == "spark bolt"), None)
    if role is not None:
        system.checker.count("second driver of a bolt")
        system.start_beside(role, partial(system.bolt_application, system.spark_bolt, "second"))


@kind("rewind the source")
def _rewind(system: System, fault: Fault) -> None:
    """An operator stops the application, commits older offsets, and starts it again."""
    _move(
        system,
        fault,
        lambda offset, log: log.start_offset + fault.target % max(1, offset - log.start_offset + 1),
    )


@kind("rewind a running source")
def _rewind_running(system: System, fault: Fault) -> None:
    """An operator commits an older offset while the application runs: before it looks, so it must notice.

    If the answer is lost the offset stands, and whichever driver is given it next must notice.
    """
    before, set_back = system.cluster.on_offsets_read, dict[Place, Committed]()
    is_due = True

    def on_offsets_read(reader: Process, group: str, places: Collection[Place]) -> Callable[[], None]:
        nonlocal is_due
        offsets = system.cluster.group(group).offsets
        is_healed = system.stage_temper.is_healed
        rewound = _rewindable(system, reader, group, places) if is_due and not is_healed else []
        if rewound:
            is_due = False
            place, first, frontier = rewound[fault.number % len(rewound)]
            offset = first + fault.target % (frontier - first)
            set_back[place] = offsets[place] = replace(offsets[place], offset=offset, metadata="")
            system.checker.repeats.forgive(group)
        others_seen = before(reader, group, places)
        standing = {
            place: committed
            for place, committed in set_back.items()
            if group == system.spout_group and place in places and offsets.get(place) is committed
        }

        def seen() -> None:
            others_seen()
            for place, committed in standing.items():
                if set_back.pop(place, None) is not None:
                    system.checker.count("running source rewound")
                    system.checker.rewind(*place, committed.offset)

        return seen

    system.cluster.on_offsets_read = on_offsets_read


def _rewindable(
    system: System, reader: Process, group: str, places: Collection[Place]
) -> list[tuple[Place, int, int]]:
    """Return what can be rewound of what is read: partition, first offset, committed one.

    In Spark only while there is one driver; tasks of a stage in Python keep each other off by the state.
    """
    drivers = [each for each in system.kernel.processes if each.name.startswith("spark") and each.tasks]
    is_owner = reader in drivers if system.engines == ("python",) else drivers == [reader]
    if group != system.spout_group or not is_owner:
        return []
    offsets = system.cluster.group(group).offsets
    logs = system.cluster.topics[SOURCE].partitions
    known = [
        place
        for place in sorted(places)
        if place[0] == SOURCE and place in offsets and seal_of(offsets[place])
    ]
    found = [(place, logs[place[1]].start_offset, offsets[place].offset) for place in known]
    return [entry for entry in found if entry[1] < entry[2]]


@kind("skip source records")
def _skip(system: System, fault: Fault) -> None:
    _move(system, fault, lambda offset, log: min(offset + fault.target % 5, log.end_offset))


def _move(system: System, fault: Fault, choose: Callable[[int, PartitionLog], int]) -> None:
    """Set offsets while no driver runs; of several in a row the last counts, as Kafka keeps no other."""
    role = driver_of(system)
    if role is None or not role.is_wanted:
        return
    role.is_wanted = False
    if role.service is not None:
        role.service.stop()

    def move() -> None:
        # A driver that hangs may overwrite what is set; none is left.
        system.kernel.kill_all([each for each in system.kernel.processes if each.name == role.name])
        group = system.cluster.group(system.spout_group)
        system.checker.repeats.forgive(group.name)
        for place, committed in list(group.offsets.items()):
            if place[0] != SOURCE:
                continue
            log = system.cluster.topics[SOURCE].partitions[place[1]]
            offset, frontier = choose(committed.offset, log), system.frontier_of(place)
            if seal_of(committed) is None and committed.offset < frontier:
                system.checker.cancel_rewind(*place)
            if offset < frontier:
                system.checker.count("source rewound")
                system.checker.rewind(*place, offset)
            elif offset > frontier and not system.allows_skip:
                system.checker.count("skip refused")
            else:
                system.checker.count("source skipped")
                system.checker.skip(*place, offset)
            group.offsets[place] = replace(committed, offset=offset, metadata="")
        role.is_wanted = True
        if role.process is None:
            system.kernel.call_after(0.5, lambda: system.start_again(role))

    system.kernel.call_after(3.0, move)


@kind("truncate the source")
def _truncate(system: System, fault: Fault) -> None:
    """Retention deletes what is done or skipped, and nothing else: the rest would be lost for everybody."""
    group = system.cluster.group(system.spout_group)
    for (topic, number), committed in group.offsets.items():
        if topic == SOURCE and fault.number % 2:
            done = min(committed.offset, system.frontier_of((topic, number)))
            system.cluster.topics[topic].partitions[number].delete_before(done)


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
        write_transaction(system, fault, logs[fault.target % len(logs)], b"x%d|" % fault.number)
