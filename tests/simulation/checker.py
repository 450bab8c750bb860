"""Checks a searched system against explicit trees, read from the log, without XOR and without edges.

Invariant: what it calls done was done by the log alone: a record is done for a bolt if an execution of it
happened all of whose children are in the log, committed, and done. What it calls wrong is a broken promise.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.log import Outcome, PartitionLog, StoredRecord
from acktree.wire.codec import decode_ack, decode_ack_init, decode_result_record
from acktree.wire.control_records import Cause, Result
from acktree.wire.header import HEADER, decode_header
from acktree.wire.ids import origin_of
from simulation.missed_records import EveryRecord
from simulation.repeats import Place, Repeats, done_by_bolt
from simulation.retries import Retries
from simulation.root_ids import RootIds
from simulation.spout_state import StateLog, done_above, seal_of
from simulation.timeouts import Timeouts

STAGE = "stage"
"""The name under which a Spark stage executes source records."""


class BrokenPromise(AssertionError):
    """The system did what it promises never to do."""


@dataclass(eq=False, slots=True)
class Execution:
    """One execution of one record by one bolt, and the values it emitted."""

    place: Place
    children: list[bytes]
    at_s: float = 0.0
    unanchored: list[bytes] = field(default_factory=list)

    @property
    def emitted(self) -> list[bytes]:
        """All values that it emitted."""
        return self.children + self.unanchored


@dataclass(eq=False)
class Checker:
    """Knows what user code did, and what the log says."""

    cluster: Cluster
    name: str
    readers: dict[str, tuple[str, ...]]
    """The bolts that read each topic."""
    result_topics: tuple[str, ...] = ()
    exactly_once: frozenset[str] = frozenset()
    repeats: Repeats = field(default_factory=Repeats)
    counters: Counter[str] = field(default_factory=Counter)
    executions: dict[tuple[str, Place], list[Execution]] = field(default_factory=lambda: defaultdict(list))
    emissions: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """The spout task and message of each emitted value."""
    acked: set[tuple[str, int]] = field(default_factory=set)
    exhausted: set[tuple[str, int]] = field(default_factory=set)
    """Messages that a bolt has rejected."""
    max_attempts: int = 1
    events: list[str] = field(default_factory=list)
    staged: dict[bytes, Execution] = field(default_factory=dict)
    """The execution of a stage that made each value."""
    source_topic: str = ""
    _open_dead_letters: list[StoredRecord] = field(default_factory=list)
    dead: set[Place] = field(default_factory=set)
    """Source records on the dead-letter topic."""
    dead_messages: set[tuple[str, int]] = field(default_factory=set)
    """Messages of Python spouts on the dead-letter topic."""
    is_breaker_open: Callable[[str], bool] = lambda _: False
    """Whether that of the driver with a transactional id is open."""
    rewound_s: dict[Place, float] = field(default_factory=dict)
    """Since when a source record has to be done once more, because an operator has rewound it."""
    skipped: set[Place] = field(default_factory=set)
    """Source records that an operator has skipped."""
    finished_s: float = 0.0
    """When a tree was last done or failed by a bolt."""
    _by_value: dict[bytes, list[tuple[str, int, StoredRecord]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _roots: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The values emitted by a spout, by root."""
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    """The root of each message number of a Python spout, by slot."""
    _read_to: dict[PartitionLog, int] = field(default_factory=dict)
    _inits: Counter[int] = field(default_factory=Counter)
    _folded_acks: set[int] = field(default_factory=set)
    _next_value: int = 0
    _done: set[tuple[str, Place]] = field(default_factory=set)
    _commits: dict[tuple[str, int], object] = field(default_factory=dict)
    _verified: set[Place] = field(default_factory=set)
    _before_rewind: dict[tuple[str, int], tuple[dict[Place, float], tuple[set[Place], ...]]] = field(
        default_factory=dict
    )
    """By partition, what was known before its last rewind."""
    _finished: set[int] = field(default_factory=set)

    def count(self, what: str) -> None:
        """Count something rare."""
        self.counters[what] += 1

    def log_event(self, text: str) -> None:
        """Write a line of the event log, which a seed gives again and again."""
        self.events.append(f"{self.cluster.kernel.now_s:.6f} {text}")

    def __post_init__(self) -> None:
        self._control_topics = (f"{self.name}.ack", f"{self.name}.ack-init")
        self._dead_letter_topic = f"{self.name}.dead-letter"
        self.retries = Retries(self.counters)
        self.timeouts = Timeouts(self.counters, self._is_surely_done)
        self.timeouts.readers = self.readers
        self.timeouts.lost = self.repeats.lost
        self.timeouts.log_start = lambda topic, number: (
            self.cluster.topics[topic].partitions[number].start_offset
        )
        self.every_record = EveryRecord()
        self.root_ids = RootIds(f"{self.name}.s")
        self.state = StateLog(self.cluster, f"{self.name}.state-s")

    # What user code says.

    def emit(self, task: str, number: int) -> bytes:
        """Return the unique value of one emission of a message."""
        self._next_value += 1
        value = b"%s/%d|%d" % (task.encode(), number, self._next_value)
        self.emissions[value] = task, number
        self.log_event(f"emit {value.decode()}")
        return value

    def execute(
        self, bolt: str, topic: str, partition: int, offset: int, value: bytes, count: int
    ) -> list[bytes]:
        """Return the unique values of the children of an execution that is about to be acked."""
        children = []
        for _ in range(count):
            self._next_value += 1
            children.append(b"%s|%d" % (value.split(b"|")[0], self._next_value))
        self.execute_with(bolt, topic, partition, offset, children)
        return children

    def execute_with(self, bolt: str, topic: str, partition: int, offset: int, children: list[bytes]) -> None:
        """Note an execution that emits values, which may be another one's children, too."""
        execution = Execution((topic, partition, offset), children, self.cluster.kernel.now_s)
        self.executions[bolt, (topic, partition, offset)].append(execution)
        if bolt == STAGE:
            self.staged.update(dict.fromkeys(children, execution))
        else:
            self.repeats.check(self.cluster.kernel.current.process, bolt, [execution.place])
        self.log_event(f"execute {bolt} {topic}/{partition}@{offset} -> {b' '.join(children).decode()}")

    def emit_unanchored(self, bolt: str, place: Place, count: int) -> list[bytes]:
        """Return the values of what the last execution of a record emits without an anchor."""
        values = []
        for _ in range(count):
            self._next_value += 1
            values.append(b"u%d|" % self._next_value)
        self.executions[bolt, place][-1].unanchored += values
        self.count("unanchored")
        return values

    def message_acked(self, task: str, number: int) -> None:
        """A spout was told that a message is done."""
        self.acked.add((task, number))
        self.log_event(f"acked {task}/{number}")

    # What the log says.

    def see_commits(self) -> None:
        """Read what the bolts have committed since the last look."""
        for bolt in {bolt for bolts in self.readers.values() for bolt in bolts}:
            if (group := self.cluster.groups.get(f"{self.name}.{bolt}")) is not None:
                self.timeouts.see_commits(bolt, group.offsets)

    def look(self) -> None:
        """Read what has been appended since the last look, and check every result."""
        appended = self.cluster.appended
        while appended:
            log = next(iter(appended))
            del appended[log]
            name = log.topic.name
            if name == self.state.topic:
                self.check_state()
                continue
            if name == self._dead_letter_topic:
                self._add_dead_letters(log)
                continue
            is_data, is_result = name in self.readers, name in self.result_topics
            if not is_data and not is_result and name not in self._control_topics:
                continue
            read_to = self._read_to.get(log, 0)
            self._read_to[log] = log.end_offset
            for record in log.records[log.index_of(read_to) :]:
                if record.is_control:
                    continue
                if is_data:
                    self._add(name, log.number, record)
                elif is_result:
                    self._check_result(name, record)
                else:
                    self._count_control(name.endswith(".ack-init"), record)
        self.root_ids.look()

    def _add(self, topic: str, partition: int, record: StoredRecord) -> None:
        value = record.value or b""
        self._by_value[value].append((topic, partition, record))
        self.log_event(f"append {topic}/{partition}@{record.offset} {value.decode()} by {record.producer}")
        is_root = value in self.emissions or value in self.staged
        for name, header in record.headers:
            if name == HEADER:
                for anchor in decode_header(header or b"").anchors:
                    place = topic, partition, record.offset
                    self.timeouts.add_tuple(anchor.root, place, self.cluster.kernel.now_s)
                    if is_root:
                        self._roots[anchor.root].append(value)
                        self.log_event(f"    its root is {anchor.root:x}")
                    if value in self.emissions:
                        self._check_number(anchor.root)

    def _check_number(self, root: int) -> None:
        """Raise BrokenPromise if a message of a Python spout has the number of another one, in any run."""
        origin = origin_of(root)
        if self._numbers.setdefault((origin.slot, origin.offset), root) != root:
            raise BrokenPromise(f"root {root:x} has the message number of another root")

    def _count_control(self, is_init: bool, record: StoredRecord) -> None:
        """Count schedules that the search is after."""
        now_s, is_repeated = self.cluster.kernel.now_s, record.producer == "repeated"
        self.timeouts.look_at(record.transaction, now_s)
        if is_init:
            self.root_ids.appended(record)
            roots = decode_ack_init(record.value or b"").inits["root"].tolist()
            self.timeouts.add_inits(roots, now_s, is_repeated=is_repeated)
            for root in roots:
                if self._inits[root]:
                    self.count("second init")
                elif root in self._folded_acks:
                    self.count("ack before init")
                self._inits[root] += 1
        else:
            ack = decode_ack(record.value or b"")
            self._folded_acks.update(ack.acks["root"].tolist())
            self.retries.check_fails(ack)
            self.timeouts.add_ack(ack, now_s, is_repeated=is_repeated)
            self.every_record.add_ack(ack)
            if len(ack.resets):
                self.count("timeout reset")

    def _check_result(self, topic: str, record: StoredRecord) -> None:
        result = decode_result_record(record.value or b"")
        if not isinstance(result, Result):
            return
        self.retries.check_result(result, self.cluster.kernel.now_s)
        if self.retries.is_time_true:
            self.timeouts.check(result, self.cluster.kernel.now_s)
        if len(result.acked) or any(each.cause is not Cause.TIMED_OUT for each in result.failed):
            self.finished_s = self.cluster.kernel.now_s
        for root in result.acked.tolist():
            self.log_event(f"result acked {root:x} on {topic}")
            self.check_root(root)

    def check_given_up(self, task: str, number: int) -> None:
        """Raise BrokenPromise if a message is given up that is not on the dead-letter topic."""
        self.look()
        if (task, number) not in self.dead_messages:
            raise BrokenPromise(f"{task} hears that message {number} is given up, and it is no dead letter")
        self.count("message given up")

    def _add_dead_letters(self, log: PartitionLog) -> None:
        """Read what has been appended; a letter counts once its transaction is committed."""
        read_to, self._read_to[log] = self._read_to.get(log, 0), log.end_offset
        fresh = [each for each in log.records[log.index_of(read_to) :] if not each.is_control]
        if any(self.is_breaker_open(writer) for writer in {each.producer for each in fresh}):
            raise BrokenPromise("a dead letter was written while the breaker is open")
        self._open_dead_letters += fresh
        self._check_open_dead_letters()

    def _check_open_dead_letters(self) -> None:
        letters, self._open_dead_letters = self._open_dead_letters, []
        for record in letters:
            if record.transaction is not None and record.transaction.outcome is Outcome.OPEN:
                self._open_dead_letters.append(record)
            elif record.is_committed:
                self._read_dead_letter(record)

    def _read_dead_letter(self, record: StoredRecord) -> None:
        if "acktree-spout" in dict(record.headers):
            self.dead_messages.add(self.emissions[record.value or b""])
            return
        origin = dict(record.headers).get("acktree-origin") or b""
        topic, partition, offset = origin.decode().rsplit("/", 2)
        place = topic, int(partition), int(offset)
        self.dead.add(place)
        self.count("dead letter")
        value = self._source_value(place)
        if value is not None:
            self.retries.check_dead_letter(place, value, dict(record.headers), self.max_attempts)
        self.log_event(f"dead letter {origin.decode()}")

    def _source_value(self, place: Place) -> bytes | None:
        topic, partition, offset = place
        records = self.cluster.topics[topic].partitions[partition].records
        return next((each.value for each in records if each.offset == offset), None)

    def check_state(self) -> None:
        """Check what a spout has committed since the last check: what it calls done must be done."""
        self._check_open_dead_letters()
        changed = self.state.look()
        if wrong := [*([self.state.repeated] if self.state.repeated else []), *self.state.shared]:
            raise BrokenPromise(wrong[0])
        for renewed in self.state.renewed:
            self.count("renewed for another task")
            self.retries.emitted_again(*renewed)
        self.state.renewed.clear()
        for topic, partition in changed:
            slot = self.state.slots[topic, partition]
            above = done_above(slot)
            place = f"{topic}/{partition}@{slot.frontier}"
            self.log_event(
                f"state {place} +{len(above)} emitted to {slot.next_offset} in term {self.state.term}"
            )
            if len(above):
                self.count("done above the frontier")
            log, rewound = (
                self.cluster.topics[topic].partitions[partition],
                self._rewound_to(topic, partition),
            )
            for record in log.records:
                is_done = record.offset < slot.frontier or record.offset in above
                if is_done and (rewound is None or record.offset < rewound):
                    self._check_source(log, record)
        if self.state.deleted:
            raise BrokenPromise(f"the state of {self.state.deleted[0]} is deleted, and its topic is there")

    def _rewound_to(self, topic: str, partition: int) -> int | None:
        """Return the offset that an operator has set and no driver has seen yet: it commits as before."""
        group = self.cluster.groups.get(f"{self.name}.s")
        committed = group.offsets.get((topic, partition)) if group is not None else None
        return committed.offset if committed is not None and seal_of(committed) is None else None

    def check_commits(self, group: str) -> None:
        """Check the offsets of a spout's group: they are a view of its state, and never ahead of it."""
        self.check_state()
        found = self.cluster.groups.get(group)
        for (topic, partition), committed in found.offsets.items() if found is not None else ():
            if topic != self.source_topic or self._commits.get((topic, partition)) is committed:
                continue
            self._commits[topic, partition] = committed
            place = f"{topic}/{partition}@{committed.offset}"
            self.log_event(f"committed {place} {committed.metadata} by {committed.member}")
            if (seal := seal_of(committed)) is None:
                continue  # by an operator
            if seal.term < self.state.term:
                self.count("late view")
                continue
            slot = self.state.newest((topic, partition))
            if slot is None or committed.offset > slot.frontier:
                raise BrokenPromise(f"the group is ahead of the state: {place} in term {seal.term}")

    def _check_source(self, log: PartitionLog, record: StoredRecord) -> None:
        place = log.topic.name, log.number, record.offset
        if place in self._verified or record.is_control or not record.is_committed:
            return
        if place in self.skipped or place in self.dead:
            self._verified.add(place)
            return
        since_s = self.rewound_s.get(place, 0.0)
        executions = [e for e in self.executions.get((STAGE, place), ()) if e.at_s >= since_s]
        reasons = f"it was never executed since {since_s:.3f} s"
        for execution in executions:
            parts = [part for child in execution.children if (part := self.open_part(child))]
            if not parts:
                self._verified.add(place)
                return
            reasons = parts[0]
        raise BrokenPromise(f"source record {place} is committed, and {reasons}")

    def rewind(self, topic: str, partition: int, first: int) -> None:
        """An operator has rewound a partition: what follows has to be done once more."""
        self.check_state()  # what was committed before this, though its marker may be under way
        self.retries.forgive(topic, partition)
        marked = self._verified, self.skipped, self.dead
        known = tuple({place for place in places if place[:2] == (topic, partition)} for places in marked)
        since_s = {place: at_s for place, at_s in self.rewound_s.items() if place[:2] == (topic, partition)}
        self._before_rewind[topic, partition] = since_s, known
        for record in self.cluster.topics[topic].partitions[partition].records:
            place = topic, partition, record.offset
            if record.offset >= first:
                for places in marked:
                    places.discard(place)
                self.rewound_s[place] = self.cluster.kernel.now_s

    def cancel_rewind(self, topic: str, partition: int) -> None:
        """An operator has set another offset, before any driver has committed what the last rewind does."""
        since_s, known = self._before_rewind.pop((topic, partition), ({}, ()))
        for place in [place for place in self.rewound_s if place[:2] == (topic, partition)]:
            del self.rewound_s[place]
        self.rewound_s |= since_s
        for places, before in zip((self._verified, self.skipped, self.dead), known, strict=False):
            places |= before

    def skip(self, topic: str, partition: int, until: int) -> None:
        """An operator has skipped what is before an offset."""
        self.retries.forgive(topic, partition)
        for record in self.cluster.topics[topic].partitions[partition].records:
            if record.offset < until:
                self.skipped.add((topic, partition, record.offset))

    def truncate(self, log: PartitionLog, first: int) -> None:
        """A broker has lost the end of a log."""
        self.lose(log, first, log.end_offset)
        log.truncate(first)
        self._read_to[log] = min(first, self._read_to.get(log, first))

    def lose(self, log: PartitionLog, first: int, following: int) -> None:
        """A broker has lost records of a log, which nobody need execute, nor what takes their place.

        Their trees are not done for that.
        """
        places = {(log.topic.name, log.number, offset) for offset in range(first, following)}
        self.every_record.excused |= {
            (bolt, place) for bolt in self.readers[log.topic.name] for place in places
        }
        self.repeats.lost |= places

    def check_root(self, root: int) -> None:
        """Raise BrokenPromise unless the tree of a root that is said to be acked is done."""
        if root in self._finished:
            return  # repeated after a refold; a batch that is run again adds tuples to its roots
        values = self._roots.get(root)
        if not values and self.source_topic:  # a stage may make nothing of a record
            self._finished.add(root)
            return
        if not values:
            raise BrokenPromise(f"root {root:x} is acked, and no tuple of it is in the log")
        for trees in self._trees_of(values):
            missing = [self._open_part_of(tree) for tree in trees]
            if "" not in missing:
                raise BrokenPromise(f"root {root:x} is acked, and {missing[0]}")
        if self.source_topic:
            self._finished.add(root)

    def _open_part_of(self, values: list[bytes]) -> str:
        return next((part for value in values if (part := self.open_part(value))), "")

    def _trees_of(self, values: list[bytes]) -> Iterator[list[list[bytes]]]:
        """Yield, for each source record of a root, what each emission of it has in the log; one must be done.

        A batch that is run again is another emission. An emission of a Python spout is one value, and has its
        root alone: all of them have to be done.
        """
        if not self.source_topic:
            yield [values]
            return
        by_record: dict[Place, list[bytes]] = defaultdict(list)
        for value in values:
            by_record[self.staged[value].place].append(value)
        for place, of_record in by_record.items():
            written = dict.fromkeys(self.staged[value] for value in of_record if self._is_committed(value))
            trees = [execution.children for execution in written] or [of_record]
            yield trees + [[] for other in self.executions[STAGE, place] if not other.children]

    def open_part(self, value: bytes) -> str:
        """Return what of a value's tree is not done, "" if all of it is."""
        found = [entry for entry in self._by_value.get(value, ()) if entry[2].is_committed]
        if not found:
            return f"{value.decode()} is not in the log"
        reasons = ""
        for topic, partition, record in found:
            reasons = ""
            for bolt in self.readers.get(topic, ()):
                place = topic, partition, record.offset
                if reasons := self._open_execution(bolt, place, value):
                    break
            if not reasons:
                return ""
        return reasons

    def _open_execution(self, bolt: str, place: Place, value: bytes) -> str:
        if (bolt, place) in self._done:
            return ""
        reasons = f"{value.decode()} at {place} was never executed by {bolt}"
        for execution in self.executions.get((bolt, place), ()):
            parts = [part for child in execution.children if (part := self.open_part(child))]
            if not parts:
                self._done.add((bolt, place))
                return ""
            reasons = parts[0]
        return reasons

    def _is_surely_done(self, root: int) -> bool:
        """Return whether all of a root's tree was executed once, and its readers have committed that.

        So all acks of it are in the log, and no second ack has cancelled one.
        """
        values = self._roots.get(root, [])
        if self.source_topic and values:
            staged = [self.executions[STAGE, place] for place in self.retries.records_of(root)]
            is_only = all(len(executions) == 1 for executions in staged)
            children = [child for executions in staged for each in executions for child in each.children]
            if not is_only or sorted(children) != sorted(values):
                return False
        return bool(values) and all(self._is_executed_once(value) for value in values)

    def _is_executed_once(self, value: bytes) -> bool:
        found = self._by_value.get(value, [])
        if len(found) != 1 or not found[0][2].is_committed:
            return False
        topic, partition, record = found[0]
        place = topic, partition, record.offset
        for bolt in self.readers.get(topic, ()):
            executions = self.executions.get((bolt, place), ())
            if len(executions) != 1 or self.every_record.has_excuse(bolt, place):
                return False
            group = self.cluster.groups.get(f"{self.name}.{bolt}")
            committed = group.offsets.get((topic, partition)) if group is not None else None
            if committed is None or not done_by_bolt(committed).holds(record.offset):
                return False
            if not all(map(self._is_executed_once, executions[0].children)):
                return False
        return True

    # At the end.

    def check_every_record(self) -> None:
        """Raise BrokenPromise if a reader is at the end of a topic, and not done with a record of it."""
        written = {value for value in self._by_value if self._is_committed(value)}
        if found := self.every_record.check(self.cluster, self.readers, self.executions, written):
            raise BrokenPromise(found)

    def check_exactly_once(self) -> None:
        """Raise BrokenPromise if an exactly-once bolt has committed children of a record twice."""
        for (bolt, place), executions in self.executions.items():
            if bolt not in self.exactly_once or place in self.repeats.lost:
                continue
            written = [
                execution
                for execution in executions
                if any(self._is_committed(child) for child in execution.emitted)
            ]
            if len(written) > 1:
                raise BrokenPromise(f"{bolt} has written children of {place} {len(written)} times")
            for execution in written:
                copies = [len(self._committed(child)) for child in execution.emitted]
                if copies != [1] * len(copies):
                    raise BrokenPromise(f"{bolt} has written children of {place} in part or twice: {copies}")

    def _committed(self, value: bytes) -> list[StoredRecord]:
        return [
            record
            for _, _, record in self._by_value.get(value, ())
            if record.transaction is None or record.transaction.outcome is Outcome.COMMITTED
        ]

    def _is_committed(self, value: bytes) -> bool:
        return bool(self._committed(value))
