"""What operators do to a running system: other settings, more partitions, fencing, rewound bolts.

Invariant: each strikes when it is called; ``System.heal`` ends what would keep a system from finishing.
"""

from dataclasses import replace
from functools import partial

from acktree.testing.virtual.kernel import Process
from simulation.fault_plan import Fault, kind
from simulation.system import MOST_TASKS, System
from simulation.topologies import NAME

BURST, BURST_INTERVAL_S = 100, 0.01
"""How many records come in while a worker joins, and how often: an open transaction has some of them."""
SMALL_BURST = 10
"""The same where a bolt is so slow that it would be busy for a minute."""
GROWTH_S = 0.8
"""Within what workers of KIP-848 have got new partitions."""


@kind("change the number of ackers")
def _change_ackers(system: System, fault: Fault) -> None:
    if 1 + fault.target % 5 < system.topology.ackers:
        system.checker.count("acker count reduced")
    _change(system, ackers=1 + fault.target % 5)


@kind("change the message timeout")
def _change_timeout(system: System, fault: Fault) -> None:
    _change(system, message_timeout_s=3.0 + fault.target % 20)


@kind("change the number of spout tasks")
def _change_tasks(system: System, fault: Fault) -> None:
    """Partitions are dealt to other tasks; only a spout that reads topics goes on through that."""
    if system.is_spark:
        spout = system.topology.spouts["s"].model_copy(update={"tasks": 1 + fault.target % MOST_TASKS})
        system.has_other_tasks = True
        _change(system, spouts={**system.topology.spouts, "s": spout})


def _change(system: System, **settings: object) -> None:
    system.topology = system.topology.model_copy(update=settings)
    system.apply(system.topology)


@kind("grow a topic")
def _grow(system: System, fault: Fault) -> None:
    names = sorted(system.checker.readers)
    name = names[fault.target % len(names)]
    count = len(system.cluster.topics[name].partitions)
    if count < 8:
        system.cluster.grow_topic(name, count + 1)


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


@kind("abort a transaction in a revocation")
def _abort_in_revocation(system: System, fault: Fault) -> None:
    """An operator scales a bolt out while records come in; who makes room loses its transaction each time.

    Where each worker keeps some partitions, what the transaction has of these must be read again, too.
    """
    bolts = [bolt for bolt in sorted(system.checker.exactly_once) if system.topology.bolts[bolt].emits]
    if not bolts:
        return
    bolt = bolts[fault.target % len(bolts)]
    group, (topic, *_) = system.cluster.group(f"{NAME}.{bolt}"), system.topology.bolts[bolt].reads
    roles = [role for role in system.roles if role.group == group.name]
    owners: set[Process | None] = set()
    before, revoked = system.kernel.on_call, None

    def on_call(caller: Process, call: str) -> None:
        nonlocal revoked
        before(caller, call)
        if caller not in owners:
            return
        if call == "consumer.revoke":
            revoked = caller
        elif call == "consumer.consume":
            revoked = None  # there was nothing to commit
        elif call == "producer.commit_transaction" and caller is revoked:
            system.checker.count("transaction aborted in a revocation")
            for name, entry in sorted(system.cluster.transactions.ids.items()):
                if name.startswith(f"{group.name}-"):
                    system.cluster.transactions.time_out(entry)

    def write(left: int) -> None:
        if left:
            system.write_untracked(topic, b"a%s-%d|" % (str(fault.at_s).encode(), left))
            system.kernel.call_after(BURST_INTERVAL_S, partial(write, left - 1))

    def start() -> None:
        nonlocal before
        if system.stage_temper.is_healed:
            return
        owners.update(role.process for role in roles)
        before, system.kernel.on_call = system.kernel.on_call, on_call
        burst = SMALL_BURST if system.checker.timeouts.has_slow_bolt else BURST
        write(burst if group.is_incremental else 0)
        system.start(roles[fault.number % len(roles)])

    if len(system.cluster.topics[topic].partitions) < 2 * len(roles) + 1:
        system.cluster.grow_topic(topic, 2 * len(roles) + 1)
        system.kernel.call_after(GROWTH_S, start)
    else:
        start()


@kind("read a bolt's offsets anew")
def _reset_offsets(system: System, fault: Fault) -> None:
    """An operator stops a bolt, rewinds it to the beginning, and starts it again."""
    names = [
        f"{NAME}.{bolt}" for bolt in system.topology.bolts if not system.topology.bolts[bolt].exactly_once
    ]
    if not names:
        return
    group = system.cluster.group(names[fault.target % len(names)])
    roles = [role for role in system.roles if role.group == group.name]
    for role in roles:
        role.is_wanted = False
        if role.service is not None:
            role.service.stop()

    def rewind() -> None:
        if not group.members:
            system.checker.count("bolt rewound")
            system.checker.repeats.forgive(group.name)
            for place, committed in group.offsets.items():
                group.offsets[place] = replace(committed, offset=0, metadata="")
        for role in roles:
            role.is_wanted = True
            system.start_again(role)

    system.kernel.call_after(3.0, rewind)
