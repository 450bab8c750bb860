"""The tester of a topology: its real ackers, workers and spouts on a simulated Kafka, in virtual time.

Invariant: a test never waits for real time and never for ever: what does not come within a limit of virtual
time is an error that says what is missing. Nothing runs but inside this class's own calls.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from acktree.console.replay import PartitionState, Wanted, execute_replay, plan_replay
from acktree.console.view.dead_letters import DeadLetter
from acktree.schemas.control_records import Span
from acktree.schemas.errors import BrokerUnreachable
from acktree.schemas.publish import apply_topology
from acktree.schemas.registry import Published, read_history
from acktree.schemas.topology import Topology, load_topology
from acktree.schemas.world import use_world
from acktree.testing.errors import FaultNeverStruck, NothingCanHappen, NotStarted, TookTooLong, UnknownName
from acktree.testing.faults import Fault, Faults
from acktree.testing.kafka.cluster import Cluster
from acktree.testing.kafka.log import Header
from acktree.testing.kafka.murmur2 import murmur2
from acktree.testing.kernel import Kernel
from acktree.testing.parts import BOOTSTRAP, Parts
from acktree.testing.results import FailedRecord, Results, TopicRecord, decoded
from acktree.testing.services import RESTART_S, Service, Services
from acktree.testing.world import SimulatedWorld

Decoded = TypeVar("Decoded")
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


class TopologyTester:
    """Runs a topology in virtual time; use it in a ``with`` block.

    >>> from acktree.producers import BasicBolt
    >>> from acktree.schemas.topology import parse_topology
    >>> class Upper(BasicBolt):
    ...     def execute(self, tuple, emit):
    ...         emit(tuple.value.upper())
    >>> topology = parse_topology('''
    ... name = "shout"
    ... [spouts.lines]
    ... topics = ["lines"]
    ... emits = ["words"]
    ... [bolts.upper]
    ... reads = ["words"]
    ... emits = ["loud"]
    ... ''')
    >>> def words(row):
    ...     return row.value.split()
    >>> with TopologyTester(topology, bolts={"upper": Upper}, stages={"lines": words}) as tester:
    ...     line = tester.send("lines", "to be")
    ...     tester.run_until_done()
    ...     sorted(tester.values("loud")), tester.acked("lines") == [line]
    (['BE', 'TO'], True)
    """

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
            partitions: how many partitions every topic has, or by topic.
            options: by name of a stage, options of its Spark source, such as maxOffsetsPerTrigger.
            user: properties for all clients, as with ``-X``.
            restart_on: errors after which a process is started again, as a supervisor does, instead of
                raising them in the test; by default that no broker answers.
            seed: with another one, what may happen in any order happens in another order.

        Raises:
            MissingPart: a name is not in the topology, or the topology has a part that is not given.
            BadTopology: see there.
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

        Python spouts begin with the first run: what they do at once meets the faults armed before.
        """
        self._is_open = True
        try:
            for topic in self._data_topics():
                count = self._partitions if isinstance(self._partitions, int) else self._partitions.get(topic)
                self.cluster.create_topic(topic, count or PARTITIONS)
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
        """Call something in a simulated process of its own."""
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

        with use_world(self.world):
            try:
                self.kernel.run(is_over, limit_s)
            except (TookTooLong, NothingCanHappen):
                self._services.check()
                if condition():
                    return
                raise TookTooLong(
                    f"{what} has not come within {limit_s:g} s of virtual time. {self._what_is_missing()}"
                    f"\nEvery task:\n{self.kernel.describe()}"
                ) from None

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotStarted(
                "this tester does not run: use it in its block, `with TopologyTester(…) as tester:`, "
                "or take the pytest fixture topology_tester"
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

    # Input.

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        *,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> TopicRecord:
        """Append a record to a topic, and return it.

        It goes to ``partition``, else where Kafka's clients put its key, else to partitions in turn.

        Raises:
            UnknownName: there is no such topic or partition.
        """
        self._check_open()
        key_bytes = key.encode() if isinstance(key, str) else key
        value_bytes = value.encode() if isinstance(value, str) else value
        logs = self._results.logs(topic)
        if partition is None and key_bytes is None:
            partition = sum(log.end_offset for log in logs) % len(logs)
        elif partition is None:
            partition = (murmur2(key_bytes or b"") & 0x7FFFFFFF) % len(logs)
        log = self._results.log(topic, partition)
        return self._results.record(log, log.append(key_bytes, value_bytes, headers, timestamp_ms))

    def replay(self, topic: str, partition: int, first: int, following: int) -> None:
        """Emit offsets from ``first`` up to ``following`` again, as ``acktree replay`` does."""
        self._check_open()
        log = self._results.log(topic, partition)
        (spout,) = (name for name, table in self.topology.spouts.items() if topic in table.topics)
        committed = self._results.group_of(spout).offsets.get((topic, partition))
        state = PartitionState(
            log.topic.topic_id, log.start_offset, log.stable_offset, committed.offset if committed else None
        )
        wanted = [Wanted(topic, partition, (Span(first, following),))]
        plan = plan_replay(self.published, wanted, {(topic, partition): state})
        self._as_operator(partial(execute_replay, BOOTSTRAP, plan, self._parts.user))

    def rewind(self, topic: str, partition: int, offset: int) -> None:
        """Set the spout group's offset, as ``kafka-consumer-groups --reset-offsets`` does."""
        self._check_open()
        self._results.log(topic, partition)
        (spout,) = (name for name, table in self.topology.spouts.items() if topic in table.topics)
        self._results.group_of(spout).commit([(topic, partition, offset, "")], "", -1, "operator")

    # Results.

    def records(self, topic: str) -> list[TopicRecord]:
        """Return what a read_committed reader finds on a topic, partition by partition."""
        return self._results.records(topic)

    def values(self, topic: str, decode: Callable[[bytes], Any] = bytes.decode) -> list[Any]:
        """Return the decoded values on a topic: text unless ``decode`` says otherwise; no tombstones."""
        return decoded(self._results.records(topic), decode)

    def acked(self, spout: str) -> list[Any]:
        """Return what is done without a dead letter: source records, or message ids of a Python spout.

        Source records come partition by partition, message ids in the order of their acks.
        """
        if not self._results.source_topics(spout):
            return [one for messages in self._messages_of(spout) for one in messages.acked]
        dead = {(d.topic, d.source_partition, d.source_offset) for d in self._results.dead_letters()}
        return [record for record in self._results.done(spout) if record.place not in dead]

    def failures(self, spout: str) -> list[FailedRecord]:
        """Return every failure that the spout was told: the record or message id, the cause, the reason."""
        if not self._results.source_topics(spout):
            return [one for messages in self._messages_of(spout) for one in messages.failed]
        return self._results.failures(spout)

    def replays(self, spout: str) -> dict[TopicRecord, int]:
        """Return how often source records were emitted again; those that were not are left out."""
        return self._results.replays(spout)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, each with its source record, reason and attempts."""
        return self._results.dead_letters()

    def pending(self, spout: str | None = None) -> int:
        """Return how many source records or messages are not done: of one spout, or of all."""
        if spout is None:
            return sum(map(self.pending, self.topology.spouts))
        if self._results.source_topics(spout):
            return len(self._results.pending(spout))
        services = (service for service in self._services.all if service.component == spout)
        return sum(service.runner.pending for service in services if service.runner is not None)

    def committed(self, topic: str, partition: int, group: str | None = None) -> int | None:
        """Return the committed offset of a source topic's spout, or of another spout or bolt; None: none."""
        readers = [group] if group else [s for s, t in self.topology.spouts.items() if topic in t.topics]
        if not readers or readers[0] not in {**self.topology.spouts, **self.topology.bolts}:
            known = ", ".join([*self.topology.spouts, *self.topology.bolts])
            raise UnknownName(f"who reads {topic!r}? Give group=, one of: {known}")
        self._results.log(topic, partition)
        found = self._results.group_of(readers[0]).offsets.get((topic, partition))
        return None if found is None else int(found.offset)

    def service(self, name: str) -> Service:
        """Return a process and what it runs, such as ``count-1``. Raises UnknownFault: there is none."""
        return self._services.of(name)[0]

    def handler(self, name: str) -> Any:
        """Return the bolt or spout object that runs in a process, such as ``count`` or ``count-1``."""
        service = self._services.of(name)[0]
        if service.name not in self._parts.handlers:
            raise UnknownName(
                f"{name!r} runs no bolt or spout; must be one of: {', '.join(self._parts.handlers)}"
            )
        return self._parts.handlers[service.name]

    def log(self) -> list[str]:
        """Return all records of all topics as text: two runs with the same seed have equal ones."""
        return self._results.everything()

    def _messages_of(self, spout: str) -> list[Any]:
        names = [service.name for service in self._services.of(spout)]
        return [self._parts.messages[name] for name in names if name in self._parts.messages]

    # Faults.

    def kill(self, name: str, *, when: str | None = None, restart_after_s: float | None = RESTART_S) -> Fault:
        """Kill a process as kill -9 does; another one is started ``restart_after_s`` later, None: never.

        ``name`` is a spout, a bolt, ``acker``, or one process of them such as ``count-1``. ``when`` is one of
        ``MOMENTS``: the first process of that name to get there dies, and nothing more of it reaches the
        broker.

        Raises:
            UnknownFault: there is no such process or moment; the text lists them.
        """
        return self._in_world(lambda: self._faults.kill(name, when, restart_after_s))

    def pause(self, name: str, seconds: float) -> Fault:
        """Give a process no processor time, as SIGSTOP does: long enough, and it comes back as a zombie."""
        return self._in_world(lambda: self._faults.pause(name, seconds))

    def cut_off(self, name: str, seconds: float) -> None:
        """Keep a process from reaching the broker for a while; it goes on running."""
        self._check_open()
        for process in self._faults.processes_of(name):
            self.world.cut_off.add(process)
            self.kernel.call_after(seconds, partial(self.world.cut_off.discard, process))

    def broker_away(self, seconds: float) -> None:
        """Let the broker answer nobody for a while."""
        self._check_open()
        self.cluster.is_up = False
        self.kernel.call_after(seconds, lambda: setattr(self.cluster, "is_up", True))

    def fail_commit(self, name: str, *, times: int = 1) -> Fault:
        """Let the broker refuse the next commits of a process: of offsets, or of a transaction."""
        return self._in_world(lambda: self._faults.fail_commit(name, times))

    def lose_answer(self, name: str, *, times: int = 1) -> Fault:
        """Let the next commits of a process succeed, and the answers to them be lost."""
        return self._in_world(lambda: self._faults.lose_answer(name, times))

    def lose(self, what: str, *, number: int = 1, times: int = 1) -> Fault:
        """Lose records on their way: ``init``, ``ack`` or ``result``, or those of a topic.

        ``number`` counts from now: 2 is the second. A control record holds what one process has to say of
        many records at that time.
        """
        return self._in_world(lambda: self._faults.lose(what, number, times))

    def repeat(self, what: str, *, number: int = 1, times: int = 1) -> Fault:
        """Write records twice; see ``lose``."""
        return self._in_world(lambda: self._faults.repeat(what, number, times))

    def step_clock(self, name: str, seconds: float) -> None:
        """Let the wall clock of a process be wrong from now on; ``broker`` is the broker's."""
        self._check_open()
        if name == "broker":
            self.cluster.clock_step_s += seconds
            return
        for process in self._faults.processes_of(name):
            process.clock_step_s += seconds

    def lose_checkpoint(self, stage: str) -> None:
        """Lose the checkpoint of a Spark application, with the application; it starts with a new one."""
        self._check_open()
        if stage not in self._parts.checkpoints:
            raise UnknownName(
                f"no stage {stage!r}; must be one of: {', '.join(self._parts.stages) or 'none'}"
            )
        self.kill(stage)
        del self._parts.checkpoints[stage]

    def _in_world(self, call: Callable[[], Fault]) -> Fault:
        self._check_open()
        with use_world(self.world):
            return call()
