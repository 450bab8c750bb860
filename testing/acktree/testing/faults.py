"""Injects the faults that a test asks for: what is killed, paused, lost or refused, and at which moment.

Invariant: a fault strikes where the test asked for it or is reported as one that never did; a name that does
not exist is refused with the list of those that do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaError

from acktree.core.topology.file import Topology
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.services import RESTART_S, Service, Services
from acktree.testing.virtual.errors import UnknownFault
from acktree.testing.virtual.kernel import Kernel, Process
from acktree.testing.world import SimulatedWorld

COMMIT_CALLS = ("consumer.commit", "producer.commit_transaction")


class Moment(NamedTuple):
    """The moment at which a fault strikes: a hook of the simulation, for some of its topics or calls."""

    hook: str
    """call, write (before a record is in the log), written, or answer"""
    what: str
    """commit, child, update (inits and acks), result, or a prefix of calls"""


MOMENTS = {
    "before a child": Moment("write", "child"),
    "between child and ack": Moment("written", "child"),
    "between ack and commit": Moment("written", "update"),
    "between result and commit": Moment("written", "result"),
    "before a commit": Moment("call", "commit"),
    "after a commit": Moment("answer", "commit"),
}
"""Moments in the life of a process; an init counts as the ack of a spout."""

HOLD_S = 0.1
"""How long acks are kept on their way where a fault waits for a child: longer than a child takes."""
LOST = ("init", "ack", "result")
"""Control records that can be lost or repeated, beside the records of a topic."""


@dataclass(eq=False)
class Fault:
    """A fault that a test has asked for."""

    text: str
    times: int = 1
    """How often it is still to strike."""
    struck: int = 0
    """How often it has struck."""

    def cancel(self) -> None:
        """Stop it from striking again."""
        self.times = 0

    @property
    def is_due(self) -> bool:
        """Whether it has yet to strike."""
        return self.times > 0

    def strike(self) -> None:
        """Count one strike."""
        self.times -= 1
        self.struck += 1


@dataclass(eq=False)
class _AtMoment(Fault):
    target: str = ""
    moment: Moment = Moment("", "")  # noqa: RUF009
    strike_at: Callable[[Service, Process], None] = lambda _service, _process: None


@dataclass(eq=False)
class _Copies(Fault):
    topics: frozenset[str] = frozenset()
    skip: int = 0
    copies: int = 1


@dataclass(eq=False)
class Faults:
    """All faults of one tested topology, and the hooks through which they strike."""

    kernel: Kernel
    cluster: Cluster
    world: SimulatedWorld
    services: Services
    topology: Topology
    armed: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel.on_call = self._on_call
        self.world.lose_response = self._is_answer_lost
        self.cluster.copies_of = self._copies_of
        self.cluster.holds = self._holds
        self.cluster.on_append = lambda process, topic: self._written(process, topic)
        self.cluster.before_commit = self._before_commit

    def never_struck(self) -> list[str]:
        """Return what was asked for and has not happened."""
        return [fault.text for fault in self.armed if fault.is_due]

    # Processes.

    def kill(self, name: str, when: str | None = None, restart_after_s: float | None = RESTART_S) -> Fault:
        """Kill a process, immediately or at a moment; see ``TopologyTester.kill``."""
        (service, *_), text = self.services.of(name), f"kill {name!r}"
        if when is None:
            self.kill_service(service, restart_after_s)
            return Fault(text, 0, 1)
        return self._at_moment(
            text,
            name,
            when,
            lambda at, _process: self.kill_service(at, restart_after_s, is_cut_off=True),
        )

    def kill_service(
        self, service: Service, restart_after_s: float | None, *, is_cut_off: bool = False
    ) -> None:
        """Kill the process of a service; ``is_cut_off``: nothing more of it reaches the broker."""
        service.restart_after_s = restart_after_s
        process = service.process
        if process is None or not process.is_alive:
            return
        for each in (process, *getattr(service.runner, "processes", ())):
            if is_cut_off:
                self.world.cut_off.add(each)
        if not self.kernel.is_in_task:
            self.kernel.kill(process)
            return
        # The task that runs may be one of those that die: it goes no further, and the hub kills them all.
        mine = self.kernel.current.process
        self.kernel.call_after(0.0, lambda: self.kernel.kill(process))
        if mine is process or mine in getattr(service.runner, "processes", ()):
            self.kernel.sleep(1.0)

    def pause(self, name: str, seconds: float) -> Fault:
        """Give a process no processor time for a while."""
        for process in self.processes_of(name):
            self.kernel.stop(process, seconds)
        return Fault(f"pause {name!r}", 0, 1)

    def processes_of(self, name: str) -> list[Process]:
        """Return the processes of the first service of a name."""
        (service, *_) = self.services.of(name)
        found = [service.process, *getattr(service.runner, "processes", ())]
        return [process for process in found if process is not None]

    def at_moment(self, text: str, name: str, when: str, strike: Callable[[Service, Process], None]) -> Fault:
        """Do something when a process reaches a moment. Raises UnknownFault."""
        return self._at_moment(text, name, when, strike)

    def _at_moment(
        self, text: str, name: str, when: str, strike: Callable[[Service, Process], None]
    ) -> Fault:
        if when not in MOMENTS:
            raise UnknownFault(f"when={when!r}: must be one of: {', '.join(map(repr, MOMENTS))}")
        self.services.of(name)
        return self._arm(_AtMoment(f"{text} {when}", 1, 0, name, MOMENTS[when], strike))

    def _arm(self, fault: Fault) -> Fault:
        self.armed.append(fault)
        return fault

    # Records, commits, answers.

    def lose(self, what: str, number: int, times: int) -> Fault:
        """Lose control records, or those of a topic, from the ``number``-th on."""
        return self._arm(_Copies(f"lose {what!r}", times, 0, self._topics(what), number - 1, 0))

    def repeat(self, what: str, number: int, times: int) -> Fault:
        """Write records twice."""
        return self._arm(_Copies(f"repeat {what!r}", times, 0, self._topics(what), number - 1, 2))

    def _topics(self, what: str) -> frozenset[str]:
        if what in LOST:
            return frozenset(topic for topic in self.cluster.topics if self._kind_of(topic) == what)
        if what not in self.cluster.topics:
            known = ", ".join([*LOST, *sorted(self.cluster.topics)])
            raise UnknownFault(f"there is no record of kind or topic {what!r}; must be one of: {known}")
        return frozenset((what,))

    def fail_commit(self, name: str, times: int) -> Fault:
        """Refuse the next commits of a process."""
        self.services.of(name)
        return self._arm(_AtMoment(f"fail a commit of {name!r}", times, 0, name, Moment("refuse", "")))

    def lose_answer(self, name: str, times: int) -> Fault:
        """Lose the broker's answers to the next commits of a process; the commits are done."""
        self.services.of(name)
        moment = Moment("lost answer", "commit")
        return self._arm(_AtMoment(f"lose the answer to a commit of {name!r}", times, 0, name, moment))

    # Hooks.

    def _service_of(self, process: Process) -> Service | None:
        name, _, _ = process.name.partition(".")
        return next((service for service in self.services.all if service.name == name), None)

    def _kind_of(self, topic: str) -> str:
        """Return what the records of a topic are."""
        topology = self.topology
        if topic == topology.ack_topic:
            return "ack"
        if topic == topology.ack_init_topic:
            return "init"
        if topic.startswith(f"{topology.name}.spout-"):
            return "result"
        return "child" if topic in topology.emitted_topics() else ""

    def _strike(self, hook: str, whats: tuple[str, ...], process: Process) -> bool:
        """Strike what waits for this moment of this process; return whether anything did."""
        if not self.armed:
            return False
        has_struck = False
        for fault in self.armed:
            if not isinstance(fault, _AtMoment) or not fault.is_due or fault.moment.hook != hook:
                continue
            service = self._service_of(process)
            if service is None or fault.target not in (service.component, service.name, process.name):
                continue
            if fault.moment.what in whats:
                fault.strike()
                has_struck = True
                fault.strike_at(service, process)
        return has_struck

    def _on_call(self, process: Process, call: str) -> None:
        if self.armed and call in COMMIT_CALLS:
            self._strike("call", ("commit",), process)

    def _copies_of(self, process: Process, topic: str) -> int:
        if not process.is_alive and process in self.world.cut_off:
            return 0
        if not self.armed:
            return 1
        if self._strike("write", self._whats(topic), process):
            return 0
        for fault in self.armed:
            if isinstance(fault, _Copies) and fault.is_due and topic in fault.topics:
                fault.skip -= 1
                if fault.skip < 0:
                    fault.strike()
                    return fault.copies
        return 1

    def _holds(self, process: Process, topic: str, age_s: float) -> bool:
        """Return whether acks wait: they overtake children, and a fault is to strike between the two."""
        if not self.armed or age_s > HOLD_S or "update" not in self._whats(topic):
            return False
        return any(
            isinstance(fault, _AtMoment)
            and fault.is_due
            and fault.moment == MOMENTS["between child and ack"]
            and (service := self._service_of(process)) is not None
            and fault.target in (service.component, service.name, process.name)
            for fault in self.armed
        )

    def _written(self, process: Process, topic: str) -> None:
        if self.armed:
            self._strike("written", self._whats(topic), process)

    def _whats(self, topic: str) -> tuple[str, ...]:
        kind = self._kind_of(topic)
        return (kind, "update") if kind in ("ack", "init") else (kind,)

    def _before_commit(self, process: Process) -> None:
        if self._strike("refuse", ("",), process):
            # Retriable for offsets; a transaction has to be aborted.
            raise Refused(KafkaError.COORDINATOR_NOT_AVAILABLE, "refused by the test")

    def _is_answer_lost(self, process: Process, call: str) -> bool:
        if not self.armed or call not in COMMIT_CALLS:
            return False
        self._strike("answer", ("commit",), process)
        return self._strike("lost answer", ("commit",), process)
