"""Runs a topology under test: its processes on a simulated Kafka, in virtual time.

Invariant: a test never waits for real time and never forever: reaching a limit of virtual time is an error
that says what is missing. Nothing runs outside of this class's calls.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from acktree.core.errors import BrokerUnreachable
from acktree.core.topology.file import Topology, load_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import Published, read_history
from acktree.core.world import use_world
from acktree.testing.faults import Faults
from acktree.testing.idle import fewer_idle_turns
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.parts import BOOTSTRAP, Parts
from acktree.testing.results import Results
from acktree.testing.services import Service, Services
from acktree.testing.virtual.errors import FaultNeverStruck, NothingCanHappen, NotStarted, TookTooLong
from acktree.testing.virtual.kernel import Kernel
from acktree.testing.world import SimulatedWorld

Answer = TypeVar("Answer")

PARTITIONS = 4
LIMIT_S = 3600.0
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
CHECK_INTERVAL_S = 0.01
"""How often, in virtual time, a run looks whether it is done."""
QUIET_S = 1.0
"""A Python spout is done when nothing of it is pending and it has emitted nothing for so long."""
SHOWN = 10
"""How many pending records an error lists."""


class RunningTopology:
    """A running topology, to which ``TopologyTester`` adds its verbs."""

    def __init__(
        self,
        topology: Topology | str | Path,
        *,
        spouts: Mapping[str, Any] | None = None,
        bolts: Mapping[str, Any] | None = None,
        stages: Mapping[str, Any] | None = None,
        workers: Mapping[str, int] | None = None,
        ackers: int | None = None,
        partitions: int | Mapping[str, int] = PARTITIONS,
        options: Mapping[str, Mapping[str, str]] | None = None,
        user: Mapping[str, str] | None = None,
        restart_on: tuple[type[BaseException], ...] = (BrokerUnreachable,),
        seed: int = 0,
    ) -> None:
        """Describe what to run; nothing runs before the ``with`` block.

        Args:
            topology: a Topology, or the path of a topology file.
            spouts: by name, the spouts that are written in Python: an instance, a class or function that
                makes one, or "MODULE:NAME".
            bolts: by name, the bolts, given in the same way. None leaves a bolt out.
            stages: by name of a spout or bolt, what Spark makes of a row: a function, or "MODULE:NAME".
            workers: by bolt, how many workers it has; by default one.
            ackers: how many acker processes run; by default one for every two acker partitions.
            partitions: how many partitions every topic has, or by topic, where the topology states none.
            options: by name of a stage, options of its Spark source, such as maxOffsetsPerTrigger.
            user: properties for all clients, as with ``-X``.
            restart_on: errors after which a process is started again, as a supervisor does, instead of
                raising them in the test; by default that no broker answers.
            seed: with another one, what may happen in any order happens in another order.

        Raises:
            MissingPart: a name is not in the topology, or the topology has a part that is not given.
            BadTopology: see its docstring.
        """
        self.topology = topology if isinstance(topology, Topology) else load_topology(Path(topology))
        self.kernel = Kernel(seed)
        self.cluster = Cluster(self.kernel)
        self.world = SimulatedWorld(self.kernel, self.cluster)
        acker_count = -(-self.topology.ackers // 2) if ackers is None else ackers
        self._parts = Parts(
            self.kernel,
            self.topology,
            spouts or {},
            bolts or {},
            stages or {},
            workers or {},
            acker_count,
            options or {},
            user or {},
        )
        self._partitions = partitions
        self._services = Services(self.kernel, restart_on)
        self._faults = Faults(self.kernel, self.cluster, self.world, self._services, self.topology)
        self._results = Results(self.cluster, lambda: self.published)
        self.published: Published
        self._quiet_since: dict[str, tuple[int, float]] = {}
        self._is_open = False
        self._began_s = 0.0

    # Starting and stopping.

    def __enter__(self) -> Self:
        """Create the topics, apply the topology, and start everything.

        Python spouts begin with the first run: faults that were armed before it apply to their first actions.
        """
        self._is_open = True
        try:
            stated = self.topology.stated_partitions()
            for topic in self._data_topics():
                count = self._partitions if isinstance(self._partitions, int) else self._partitions.get(topic)
                self.cluster.create_topic(topic, stated.get(topic) or count or PARTITIONS)
            self._as_operator(self._apply)
            services = list(self._parts.services())
            for service in services:
                if service.kind != "spout":
                    self._services.add(service)
            self._run(lambda: self._services.are_ready, START_LIMIT_S, "the start of every process")
            for service in services:
                if service.kind == "spout":
                    self._services.add(service)
        except BaseException:
            self.close()
            raise
        self._began_s = self.kernel.now_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Stop everything; raise what a clean stop raises.

        Raises:
            FaultNeverStruck: a fault that was asked for has not happened.
        """
        try:
            if kind is None and self._is_open:
                if missed := self._faults.never_struck():
                    raise FaultNeverStruck(
                        f"never happened: {'; '.join(missed)}. Run longer, ask for another moment, or "
                        "cancel() the fault"
                    )
                self._stop()
        finally:
            self.close()

    def close(self) -> None:
        """Kill whatever still runs; harmless if nothing does."""
        self._is_open = False
        self._services.is_closing = True
        with use_world(self.world):
            self.kernel.close()

    def _stop(self) -> None:
        """Stop every process in order, so that its code cleans up; one that hangs is killed later."""
        self._services.is_closing = True
        stopped = [service for service in self._services.all if service.is_running and service.runner]
        for service in stopped:
            self._as_operator(service.runner.stop, is_awaited=False)
        try:
            self._run(
                lambda: not any(s.is_running for s in stopped), STOP_LIMIT_S, "the end of every process"
            )
        except TookTooLong:
            pass

    def _data_topics(self) -> list[str]:
        sources = [topic for table in self.topology.spouts.values() for topic in table.topics]
        return list(dict.fromkeys([*sources, *self.topology.emitted_topics()]))

    def _apply(self) -> None:
        apply_topology(BOOTSTRAP, self.topology, self._parts.user)
        self.published = read_history(BOOTSTRAP, self.topology.name, self._parts.user).latest

    def _as_operator(self, call: Callable[[], Answer], *, is_awaited: bool = True) -> Answer | None:
        """Call something in its own simulated process."""
        operator = self.kernel.process("operator")
        answers: list[Answer] = []
        self.kernel.spawn(operator, lambda: answers.append(call()), "operator")
        if is_awaited:
            self._run(lambda: not operator.tasks, START_LIMIT_S, "a command")
            if operator.error is not None:
                raise operator.error
            return answers[0]
        return None

    # Time.

    @property
    def now_s(self) -> float:
        """Virtual seconds since everything was ready."""
        return self.kernel.now_s - self._began_s

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass. Raises what user code raises."""
        self._check_open()
        end_s = self.kernel.now_s + seconds
        self.kernel.call_after(seconds, lambda: None)
        self._run(lambda: self.kernel.now_s >= end_s, seconds + 1.0, "the end of a pause")

    def run_until(
        self, condition: Callable[[], bool], limit_s: float = LIMIT_S, what: str = "the condition"
    ) -> None:
        """Run until a condition holds; it is looked at every 10 ms of virtual time.

        Raises:
            TookTooLong: it does not hold after ``limit_s`` virtual seconds; the text says what is pending.
        """
        self._check_open()
        self._run(condition, limit_s, what)

    def run_until_done(self, limit_s: float = LIMIT_S) -> None:
        """Run until every source record is done, and every bolt has committed what it was sent.

        Raises:
            TookTooLong: it is not after ``limit_s`` virtual seconds; the text says what is pending.
        """
        self.run_until(self._is_done, limit_s, "the end of all trees")

    def _run(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        next_s = 0.0

        def is_over() -> bool:
            nonlocal next_s
            if self.kernel.now_s < next_s:
                return False
            next_s = self.kernel.now_s + CHECK_INTERVAL_S
            self._services.check()
            self.kernel.ended.clear()
            return condition()

        with use_world(self.world), fewer_idle_turns():
            try:
                self.kernel.run(is_over, limit_s)
            except (TookTooLong, NothingCanHappen):
                self._services.check()
                if condition():
                    return
                raise TookTooLong(
                    f"{what} did not happen within {limit_s:g} s of virtual time. {self._what_is_missing()}"
                    f"\nEvery task:\n{self.kernel.describe()}"
                ) from None

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotStarted(
                "this tester is not running: use it in a block, `with TopologyTester(…) as tester:`, "
                "or use the pytest fixture topology_tester"
            )

    def _is_done(self) -> bool:
        if not all(service.is_running and service.is_ready for service in self._wanted()):
            return False
        for name, table in self.topology.spouts.items():
            is_pending = self._results.has_pending(name) if table.topics else not self._is_quiet(name)
            if is_pending:
                return False
        return not any(self._results.unread(name) for name in self._read_bolts())

    def _wanted(self) -> Iterable[Service]:
        """Yield the services that run, or will run again."""
        return (s for s in self._services.all if s.is_running or s.restart_after_s is not None)

    def _read_bolts(self) -> list[str]:
        return [
            name for name in self.topology.bolts if self._parts.bolts.get(name) or name in self._parts.stages
        ]

    def _is_quiet(self, spout: str) -> bool:
        """Return whether a Python spout has nothing pending, and has not emitted for a while."""
        for service in self._services.of(spout):
            runner = service.runner
            if runner is None:
                return False
            emitted = runner.emitter.counters.emitted
            known, since_s = self._quiet_since.get(service.name, (-1, 0.0))
            if known != emitted or runner.pending:
                self._quiet_since[service.name] = emitted, self.kernel.now_s
                return False
            if self.kernel.now_s - since_s < QUIET_S:
                return False
        return True

    def _what_is_missing(self) -> str:
        lines = []
        for name in self.topology.spouts:
            if count := self.pending(name):
                lines.append(f"spout {name}: {count} pending")
                lines += [f"    {text}" for text in self._pending_lines(name)[:SHOWN]]
        for name in self._read_bolts():
            if unread := self._results.unread(name):
                lines.append(f"bolt {name}: has not committed {', '.join(unread)}")
        lines += [f"{s.name}: is not ready" for s in self._services.all if not s.is_ready]
        lines += [f"a fault that has not happened: {text}" for text in self._faults.never_struck()]
        return "\n".join(["What is missing:", *lines]) if lines else "Nothing is pending."

    def _pending_lines(self, spout: str) -> list[str]:
        if not self.topology.spouts[spout].topics:
            return []
        replays, reasons = self._results.replays(spout), {}
        for failed in self._results.failures(spout):
            reasons[failed.record.place] = failed.reason or failed.cause.name
        return [
            f"{record.topic}/{record.partition}/{record.offset}: {record.value!r}, replayed "
            f"{replays.get(record, 0)} times, last failure: {reasons.get(record.place, 'none')}"
            for record in self._results.pending(spout)
        ]

    def pending(self, spout: str | None = None) -> int:
        """Return how many source records or messages are not done: of one spout, or of all."""
        if spout is None:
            return sum(map(self.pending, self.topology.spouts))
        if self._results.source_topics(spout):
            return len(self._results.pending(spout))
        services = (service for service in self._services.all if service.component == spout)
        return sum(service.runner.pending for service in services if service.runner is not None)
