"""The tester of a topology: drives it from a test, and observes the results.

Invariant: every name that a test gives is checked, and a wrong one is refused with those that exist.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from acktree.console.flow import execute_flow, plan_flow
from acktree.console.replay import PartitionState, Wanted, execute_replay, plan_replay
from acktree.console.view.records.dead_letters import DeadLetter
from acktree.core.topology.flow import Flow
from acktree.core.topology.registry import History
from acktree.core.world import use_world
from acktree.testing.faults import Fault
from acktree.testing.kafka.broker.log import Header
from acktree.testing.kafka.clients.murmur2 import murmur2
from acktree.testing.parts import BOOTSTRAP
from acktree.testing.results import FailedRecord, TopicRecord, decoded
from acktree.testing.running import RunningTopology
from acktree.testing.services import RESTART_S, Service
from acktree.testing.virtual.errors import UnknownName
from acktree.wire.control_records import Span


class TopologyTester(RunningTopology):
    """Runs a topology in virtual time; use it in a ``with`` block.

    >>> from acktree.producers import BasicBolt
    >>> from acktree.core.topology.file import parse_topology
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

    def set_flow(self, spout: str, flow: Flow) -> Mapping[str, int]:
        """Pause, drain or resume a spout, as the commands do; return the offsets on the registry topic.

        The spout follows within a few seconds.
        """
        self._check_open()
        plan = plan_flow(History(self.published.name, {1: self.published}), spout, flow)
        execute = partial(execute_flow, BOOTSTRAP, plan, self.published, self._parts.user)
        return self._as_operator(execute) or {}

    def rewind(self, topic: str, partition: int, offset: int) -> None:
        """Set the spout group's offset, as ``kafka-consumer-groups --reset-offsets`` does."""
        self._check_open()
        self._results.log(topic, partition)
        (spout,) = (name for name, table in self.topology.spouts.items() if topic in table.topics)
        self._results.group_of(spout).commit([(topic, partition, offset, "", -1)], "", -1, "operator")

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
        """Return every failure reported to the spout: the record or message id, the cause, the reason."""
        if not self._results.source_topics(spout):
            return [one for messages in self._messages_of(spout) for one in messages.failed]
        return self._results.failures(spout)

    def replays(self, spout: str) -> dict[TopicRecord, int]:
        """Return how often source records were emitted again; those that were not are left out."""
        return self._results.replays(spout)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, each with its source record, reason and attempts."""
        return self._results.dead_letters()

    def committed(self, topic: str, partition: int, group: str | None = None) -> int | None:
        """Return the committed offset of a source topic's spout, or of another spout or bolt, if any."""
        readers = [group] if group else [s for s, t in self.topology.spouts.items() if topic in t.topics]
        if not readers or readers[0] not in {**self.topology.spouts, **self.topology.bolts}:
            known = ", ".join([*self.topology.spouts, *self.topology.bolts])
            raise UnknownName(f"the reader of {topic!r} is not clear: set group= to one of: {known}")
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

    def disconnect(self, name: str, seconds: float) -> None:
        """Keep a process from reaching the broker for a while; it keeps running."""
        self._check_open()
        for process in self._faults.processes_of(name):
            self.world.cut_off.add(process)
            self.kernel.call_after(seconds, partial(self.world.cut_off.discard, process))

    def broker_away(self, seconds: float) -> None:
        """Stop the broker from answering anyone for a while."""
        self._check_open()
        self.cluster.is_up = False
        self.kernel.call_after(seconds, lambda: setattr(self.cluster, "is_up", True))

    def fail_commit(self, name: str, *, times: int = 1) -> Fault:
        """Make the broker refuse the next commits of a process: of offsets, or of a transaction."""
        return self._in_world(lambda: self._faults.fail_commit(name, times))

    def lose_answer(self, name: str, *, times: int = 1) -> Fault:
        """Let the next commits of a process succeed, but lose the responses."""
        return self._in_world(lambda: self._faults.lose_answer(name, times))

    def lose(self, what: str, *, number: int = 1, times: int = 1) -> Fault:
        """Lose records on their way: ``init``, ``ack`` or ``result``, or those of a topic.

        ``number`` counts from now: 2 is the second. One control record covers many
        records of a process.
        """
        return self._in_world(lambda: self._faults.lose(what, number, times))

    def repeat(self, what: str, *, number: int = 1, times: int = 1) -> Fault:
        """Write records twice; see ``lose``."""
        return self._in_world(lambda: self._faults.repeat(what, number, times))

    def step_clock(self, name: str, seconds: float) -> None:
        """Skew the wall clock of a process from now on; ``broker`` is the broker's."""
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
