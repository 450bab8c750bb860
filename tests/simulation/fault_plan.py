"""The faults of a search: what strikes a system, where and when.

Invariant: a plan is a list of plain values, so that it can be printed, cut down, and kept as a test.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from acktree.testing.kafka.broker.log import PartitionLog
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.virtual.kernel import Process
from simulation.system import Role, System
from simulation.timeouts import HARMLESS

FAULTY_S = 6.0
"""For how long faults may strike, in virtual time."""

SECOND_BOLT_DRIVER = "second-bolt-driver"
"""A kind of fault for which each system that may have a bolt in Spark has one."""

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
    "consumer.subscribe",
    "consumer.assign",
    "consumer.incremental_assign",
    "consumer.incremental_unassign",
    "consumer.revoke",
    "consumer.get_watermark_offsets",
    "consumer.list_topics",
    "consumer.consumer_group_metadata",
    "consumer.close",
    "admin.list_offsets",
    "admin.list_topics",
    "admin.describe_topics",
    "admin.describe_configs",
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
    "admin.describe_topics",
    "admin.describe_configs",
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
OPT_IN: dict[str, Striker] = {}
"""Kinds that are drawn only if somebody asks for them: the product is known not to hold."""


def kind(name: str, *, is_opt_in: bool = False) -> Callable[[Striker], Striker]:
    """Name a kind of fault."""

    def add(strike: Striker) -> Striker:
        (OPT_IN if is_opt_in else KINDS)[name] = strike
        return strike

    return add


def draw_faults(draw: random.Random, is_calm: bool = False) -> list[Fault]:
    """Return a random plan: a random subset of kinds, some of each (FoundationDB's swarm testing).

    ``is_calm``: none of them keeps an acker from its work, so each timeout has to come in its time.
    """
    kinds = [name for name in KINDS if draw.random() < draw.choice([0.1, 0.3])]
    if is_calm:
        kinds = [name for name in kinds if name in HARMLESS]
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


def draw_opt_in(draw: random.Random, kinds: Sequence[str]) -> list[Fault]:
    """Return one fault of each of these kinds."""
    return [
        Fault(name, at_s=round(draw.uniform(0.0, FAULTY_S), 3), number=draw.randrange(1000)) for name in kinds
    ]


def schedule(system: System, plan: list[Fault]) -> None:
    """Let every fault of a plan strike at its time."""
    for fault in plan:

        def strike(fault: Fault = fault) -> None:
            system.checker.count(f"fault: {fault.kind}")
            system.checker.log_event(f"fault {fault}")
            system.checker.timeouts.strike(fault.kind)
            (KINDS.get(fault.kind) or OPT_IN[fault.kind])(system, fault)

        system.kernel.call_after(fault.at_s, strike)


def role_of(system: System, fault: Fault, *kinds: str) -> Role:
    """Return the role that a fault strikes, of some kinds or of all."""
    roles = [role for role in system.roles if not kinds or role.kind in kinds]
    return roles[fault.target % len(roles)]


def at_call(
    system: System,
    is_meant: Callable[[Process, str], bool],
    count: int,
    strike: Callable[[Process], None],
) -> None:
    """Strike the process that makes a call that is meant, when ``count`` such calls have gone before."""
    before, left = system.kernel.on_call, count

    def on_call(caller: Process, call: str) -> None:
        nonlocal left
        before(caller, call)
        if left >= 0 and is_meant(caller, call):
            left -= 1
            if left < 0:
                strike(caller)

    system.kernel.on_call = on_call


def of_process(process: Process, call: str = "") -> Callable[[Process, str], bool]:
    """Return what is meant by a process's calls, or by those of one name."""
    return lambda caller, name: caller is process and (not call or name == call)


def write_transaction(system: System, fault: Fault, log: PartitionLog, value: bytes) -> None:
    """Write a record in a stranger's transaction: it ends at once, or runs into its timeout."""
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
