"""One searched system: its topology, its processes, and who starts them again.

Invariant: everything about it follows from the seed.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from confluent_kafka import KafkaException

from acktree.acker.service import Acker
from acktree.core import world
from acktree.core.reports.breaker import Breaker
from acktree.core.reports.liveness import Liveness
from acktree.core.topology.file import Topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt, Reject, RetryLater
from acktree.producers.bolt import AnyBolt
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.spouts.state_topic import OutputRecord
from acktree.producers.stages.root_packer import FinishedRoots
from acktree.producers.stages.source_reader import MAX_RECORDS
from acktree.producers.stages.stage_task import StageTask
from acktree.producers.stages.stage_worker import StageWorker
from acktree.producers.worker.loop import Worker
from acktree.spark.source import AcktreeStreamReader
from acktree.testing.kafka.broker.assignors import Place
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.spark.spark_stub import POLLING_DELAY_S, Calls, Checkpoint, SparkApplication
from acktree.testing.virtual.kernel import Kernel, Process
from acktree.testing.world import SimulatedWorld
from acktree.wire.control_records import BACK_OFF, NEVER
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import origin_of
from simulation.actors import BOLTS, Mind, RetriedSpout, SearchSpout, SpoutMessages, Temper
from simulation.checker import STAGE, Checker
from simulation.repeats import Repeats, done_by_bolts, done_by_spout, planned_places
from simulation.retries import Retries, reason_for
from simulation.root_ids import RootIds
from simulation.spout_state import StateLog
from simulation.topologies import NAME, SOURCE, draw_topology, with_blocks, with_breaker

BOOTSTRAP = "simulated"
RESTART_S = (0.1, 3.0)
DEFAULT_ATTEMPTS = 10
SLOW_BOLT = 0.15
"""How often a bolt is slower than its backlog."""
SPARK_BOLT = 0.15
"""How often one of the bolts that may be a Spark application is one."""
ENGINES = (("spark",), ("spark",), ("python",), ("python", "spark"))
"""What runs the stage of a spout that reads topics, one of them at each start."""
MOST_PROCESSES, MOST_TASKS = 3, 3
"""Of a stage in Python: where nothing else runs it several processes share out its tasks."""
READ_AHEAD = (1, 4, MAX_RECORDS)
"""How many records of a partition a stage in Python keeps before it pauses the partition."""
ALLOWS_SKIP = 0.6
"""How often the driver obeys an operator who skips records."""
HEARTBEAT_MS = "500"
"""How often a worker of KIP-848 hears of what it has to give up: with 5 s it is often healed before."""
UNTRACKED_S = 6.0
"""Within what untracked records are written, that is while faults strike."""


class FailedCall(KafkaException):
    """What a fault raises out of a driver's call: it fails the query, and not the process."""


class WatchedApplication(SparkApplication):
    """A Spark application whose plans are checked for what need not be done again."""

    repeats: Repeats
    retries: Retries
    root_ids: RootIds
    state: StateLog
    _has_logged = False

    def run(self) -> None:
        """Run until stopped; where a fault has failed the query, close its source and start it again."""
        while True:
            try:
                return super().run()
            except (AcktreeError, KafkaException) as error:
                if not _is_of_a_failed_call(error):
                    raise
            self.reader.stop()
            self.reader = AcktreeStreamReader(self._parsed)
            self.batch, self.is_constructed, self._has_logged = 0, False, False
            self.committed = self.available = None
            self._kernel.sleep(POLLING_DELAY_S)

    def log_offset(self) -> None:
        """Log the end of the batch, and check what it holds."""
        before = self.checkpoint.offset(self.batch - 1)
        super().log_offset()
        assert self.available is not None
        self.repeats.check(self._process, "the driver", planned_places(self.available))
        if not self._has_logged:
            self._has_logged = True
            number, driver = before["number"] if before else 0, self.reader._driver
            assert isinstance(driver, SpoutDriver)
            is_known = not self.state.is_unknown(number, driver.commits.term)
            self.retries.begin_behind(number, is_known=is_known)
        batch = PlannedBatch.from_json(self.available)
        self.root_ids.planned(batch)
        self.retries.check_plan(batch, self._kernel.now_s)


def _is_of_a_failed_call(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, FailedCall):
        error = error.__cause__
    return error is not None


class StageOfSearch(BasicBolt):
    """What a stage in Python makes of a record, as ``System.make_rows`` draws it."""

    def __init__(self, system: "System") -> None:
        self._system = system

    def execute(self, tup: Any, emit: Any) -> None:
        checker, process = self._system.checker, self._system.kernel.current.process
        checker.repeats.check(process, "the stage", [(tup.topic, tup.partition, tup.offset)])
        checker.count("executed by a stage in Python")
        for row in self._system.make_rows(tup):
            if isinstance(row, bytes):
                emit(row, key=row)
            elif not row.get("retry", True):
                raise Reject(row["fail"])
            elif row.get("retry_after_s") is not None:
                raise RetryLater(row["retry_after_s"], row["fail"])


class WatchedTask(StageTask):
    """A task of a stage in Python whose writes are checked: nothing in flight is written again."""

    retries: Retries
    is_alone: Callable[[], bool]
    """Whether no Spark application runs for its spout in turn with it, and its tasks stay as they are."""
    _roots: Sequence[int] = ()

    def _inits(self, finished: FinishedRoots) -> list[OutputRecord]:
        self._roots = [*self._roots, *finished.entries["root"].tolist()]
        return super()._inits(finished)

    def _write(self) -> None:
        self._roots = ()
        super()._write()
        if self._roots and self.is_alone():
            places = {slot: place for place, (slot, _) in self._driver.places().items()}
            origins = [(root, origin_of(root)) for root in self._roots]
            written = [((*places[o.slot], o.offset), root) for root, o in origins if o.slot in places]
            self.retries.check_written(written, world.monotonic_s())

    @property
    def breaker(self) -> Breaker:
        return self._driver.breaker

    @property
    def number(self) -> int | None:
        return next(iter(self._driver.tasks), None)  # none before it is open


class WatchedStage(StageWorker):
    """A stage in Python whose tasks are watched."""

    def __init__(
        self, retries: Retries, is_alone: Callable[[], bool], read_ahead: int, *place: Any, **given: Any
    ) -> None:
        self._retries, self._is_alone, self._read_ahead = retries, is_alone, read_ahead
        super().__init__(*place, **given)

    def make_task(self, options: SpoutOptions, stage: AnyBolt, progress: Liveness) -> StageTask:
        made = WatchedTask(options, stage, progress)
        made.retries, made.is_alone = self._retries, self._is_alone
        made._reader.max_records = self._read_ahead
        return made

    def breaker_of(self, writer: str) -> Breaker | None:
        """Return that of the task with a transactional id, None if no such task runs here."""
        watched = (cast(WatchedTask, task) for task in self._made())
        return next((task.breaker for task in watched if f"{NAME}.s.{task.number}" == writer), None)

    @property
    def breaker(self) -> Breaker | None:
        """That of a task which is open, else of any."""
        breakers = [cast(WatchedTask, task).breaker for task in self._made()]
        return next((each for each in breakers if each.is_open), breakers[0] if breakers else None)


@dataclass(eq=False)
class Role:
    """A place for a process: when one ends, the next is started."""

    name: str
    kind: str
    """acker, worker, spout, spark or spark bolt"""
    make: Callable[[], Any]
    group: str = ""
    """The consumer group whose commits say what it need not do again."""
    process: Process | None = None
    service: Any = None
    is_wanted: bool = True
    is_alone: bool = False
    """Whether each start of a second process of its name ends the transaction of the first, to no avail."""


@dataclass(eq=False)
class System:
    """See the module."""

    seed: int
    spark_bolt_chance: float = SPARK_BOLT
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        self.kernel = Kernel(self.seed)
        self.cluster = Cluster(self.kernel)
        self.world = SimulatedWorld(self.kernel, self.cluster)
        self.delay_s = self.world.delay_s
        self.draw = random.Random(f"system {self.seed}")
        drawn = with_breaker(draw_topology(self.draw), random.Random(f"breaker {self.seed}"))
        self.topology = with_blocks(drawn, random.Random(f"blocks {self.seed}"))
        readers: dict[str, tuple[str, ...]] = {}
        for bolt, table in self.topology.bolts.items():
            for topic in table.reads:
                readers[topic] = (*readers.get(topic, ()), bolt)
        self.checker = Checker(
            self.cluster,
            NAME,
            readers,
            exactly_once=frozenset(name for name, table in self.topology.bolts.items() if table.exactly_once),
        )
        self.retry_draw = random.Random(f"retries {self.seed}")
        self.untracked_draw = random.Random(f"untracked {self.seed}")
        self.minds = {name: self._mind(name) for name in self.topology.bolts}
        self.checker.timeouts.has_slow_bolt = any(mind.temper.pace_s for mind in self.minds.values())
        self.is_spark = bool(self.topology.spouts["s"].topics)
        self.checker.source_topic = SOURCE if self.is_spark else ""
        self.checker.is_breaker_open = self._is_breaker_open
        spout = self.topology.spouts["s"]
        self.checker.max_attempts = spout.max_attempts
        self.checker.retries.has_breaker = bool(spout.max_failure_ratio or spout.max_consecutive_failures)
        self.spout_group = f"{NAME}.s"
        self.allows_skip = random.Random(f"skip {self.seed}").random() < ALLOWS_SKIP
        self.checkpoints: dict[str, Checkpoint] = defaultdict(Checkpoint)
        """The checkpoint of each Spark application, by its role."""
        self.other_checkpoint = Checkpoint()
        """That of the spout's application which is not in use."""
        self.spark_bolt = self._draw_spark_bolt(random.Random(f"Spark bolt {self.seed}"))
        self.source_left = 0
        self.has_other_tasks = False
        """Whether an operator has changed their number: what is in flight of a stage may be emitted again."""
        self.engine_draw = random.Random(f"engine {self.seed}")
        self.engines = self.engine_draw.choice(ENGINES)
        self.read_ahead = random.Random(f"read ahead {self.seed}").choice(READ_AHEAD)
        self.stage_draw = random.Random(f"stage {self.seed}")
        self.stage_temper = Temper()
        self._draw_retries(self.stage_temper)
        self.stage_mind = Mind(self.checker, STAGE, self.stage_temper, self.retry_draw, self.retry_draw)
        self.version_draw = random.Random(f"Spark's version {self.seed}")
        self.roles: list[Role] = []
        self.messages: dict[str, SpoutMessages] = {}
        self.speculation = self.cutting = self.outlive_s = 0.0
        self._replaced: set[Process] = set()
        self._open_breakers: set[str] = set()
        draw = self.draw
        delays = draw.choice([lambda: 0.0, lambda: draw.uniform(0, 0.01), lambda: draw.uniform(0, 0.3)])
        self.cluster.transactions.marker_delay_s = delays

    def _draw_spark_bolt(self, draw: random.Random) -> str:
        """Return a bolt that is a Spark application, "" for none; which emits nothing calls no user code."""
        tables = self.topology.bolts
        names = [name for name, table in tables.items() if table.emits and not table.exactly_once]
        return draw.choice(names) if names and draw.random() < self.spark_bolt_chance else ""

    def _mind(self, bolt: str) -> Mind:
        draw = self.draw
        some = draw.choice([0.0, 0.0, 0.02, 0.1])
        temper = Temper(
            children=draw.choice([1, 1, 1, 2]) if self.topology.bolts[bolt].emits else 0,
            fail=draw.choice([0.0, some]),
            raises=draw.choice([0.0, some]),
            slow=draw.choice([0.0, some]),
            slow_s=draw.choice([0.2, 2.0, 8.0]),
            holds=draw.choice([0.0, some * 3]),
            never=draw.choice([0.0, 0.0, some / 4]),
        )
        self._draw_retries(temper)
        pace_draw = random.Random(f"pace of {bolt} {self.seed}")
        if pace_draw.random() < SLOW_BOLT:
            temper.pace_s = pace_draw.choice([0.1, 0.3])
            self.checker.count("bolt slower than its backlog")
        if temper.children:
            temper.unanchored = self.untracked_draw.choice([0.0, 0.0, 0.1, 0.3])
        names = (bolt, f"retries of {bolt}", f"unanchored of {bolt}")
        draws = (random.Random(f"{what} {self.seed}") for what in names)
        return Mind(self.checker, bolt, temper, *draws)

    def _draw_retries(self, temper: Temper) -> None:
        draw = self.retry_draw
        temper.rejects = draw.choice([0.0, 0.0, 0.03, 0.1])
        temper.delays = draw.choice([0.0, 0.0, 0.05, 0.2])
        temper.delay_ms = draw.choice([0, 500, 4_000, 20_000])

    def _is_breaker_open(self, writer: str) -> bool:
        """Whether the breaker of the driver that writes is open: of the application, or of one task."""
        services = (role.service for role in self.roles if role.kind == "spark" and role.process is not None)
        breakers = (
            service.breaker_of(writer) if isinstance(service, WatchedStage) else service.breaker
            for service in services
            if service is not None
        )
        return any(breaker is not None and breaker.is_open for breaker in breakers)

    # Setting up.

    def set_up(self) -> None:
        """Create the topics, apply the topology, and start everything."""
        for topic in self.checker.readers:
            self.cluster.create_topic(topic, self.draw.randint(1, 4))
        if self.is_spark:
            self.cluster.create_topic(SOURCE, self.draw.randint(1, 3))
        self.apply(self.topology)
        self.kernel.run(lambda: not self._applying.tasks, 60)
        if self._applying.error is not None:
            raise self._applying.error
        draw = self.draw
        protocol = draw.choice(["classic", "consumer"])
        acker_protocol = draw.choice(["classic", "classic", "consumer"])
        for number in range(draw.randint(1, 3)):
            user = {"group.protocol": acker_protocol}
            if draw.random() < 0.2:
                user["group.instance.id"] = f"acker-{number}"
            self._add(f"acker{number}", "acker", partial(Acker, BOOTSTRAP, NAME, user=user, seed=1))
        for bolt in self.topology.bolts:
            if bolt == self.spark_bolt:
                self._add(f"{bolt}0", "spark bolt", partial(self.bolt_application, bolt), f"{NAME}.{bolt}")
                continue
            make = BOLTS[draw.choice(list(BOLTS))]
            for number in range(draw.randint(1, 2)):
                user = {"group.protocol": protocol}
                if draw.random() < 0.2:
                    user["group.instance.id"] = f"{bolt}-{number}"
                group = f"{NAME}.{bolt}"
                self._add(f"{bolt}{number}", "worker", partial(self._worker, bolt, make, user), group)
                has_name = "group.instance.id" in user and protocol == "consumer"
                self.roles[-1].is_alone = has_name and bolt in self.checker.exactly_once
                self.cluster.group(group).config["consumer.heartbeat.interval.ms"] = HEARTBEAT_MS
        for name, table in self.topology.spouts.items():
            if self.is_spark:
                self._add("spark", "spark", self._make_stage, self.spout_group)
                processes = random.Random(f"processes of the stage {self.seed}").randint(1, MOST_PROCESSES)
                for number in range(1, processes if self.engines == ("python",) else 1):
                    self._add(f"spark{number}", "spark", self._make_stage, self.spout_group)
                self._write_source(draw.randint(5, 30), draw.choice([0.01, 0.1, 0.3]))
                break
            for task in range(table.tasks):
                key = f"{name}-{task}"
                messages = SpoutMessages(draw.randint(3, 20), draw.choice([0.05, 0.3, 0.5]))
                self.messages[key] = messages
                self._add(key, "spout", partial(self._spout, name, task, key))
        self.message_count = sum(messages.count for messages in self.messages.values())
        count = MOST_TASKS if self.is_spark else sum(table.tasks for table in self.topology.spouts.values())
        self.checker.result_topics = tuple(f"{NAME}.spout-{task}" for task in range(count))
        self._write_untracked(self.untracked_draw.choice([0, 0, 3, 8]))
        for role in self.roles:
            self.start(role)

    def apply(self, topology: Topology) -> None:
        """Publish a topology, as an operator does."""
        self.checker.timeouts.publish(topology.message_timeout_s)
        self._applying = self.kernel.process("operator")
        self.kernel.spawn(self._applying, lambda: apply_topology(BOOTSTRAP, topology, {}), "apply")

    def _worker(self, bolt: str, make: Callable[[Mind], Any], user: dict[str, str]) -> Worker:
        return Worker(BOOTSTRAP, NAME, make(self.minds[bolt]), name=bolt, user=user)

    def _spout(self, name: str, task: int, key: str) -> SpoutWorker:
        has_retry = self.topology.spouts[name].max_attempts < DEFAULT_ATTEMPTS
        spout = (RetriedSpout if has_retry else SearchSpout)(self.checker, key, self.messages[key])
        return SpoutWorker(BOOTSTRAP, NAME, spout, task=task, name=name)

    def _make_stage(self) -> SparkApplication | WatchedStage:
        """Return the spout's stage: in some seeds Spark and Python run it in turn."""
        if self.engine_draw.choice(self.engines) == "spark":
            return self._application()
        options = {"allow_skip": self.allows_skip}
        watched = self.checker.retries, lambda: self.engines == ("python",) and not self.has_other_tasks
        return WatchedStage(
            *watched,
            self.read_ahead,
            BOOTSTRAP,
            NAME,
            partial(StageOfSearch, self),
            name="s",
            options=options,
        )

    def _application(self) -> SparkApplication:
        checkpoint = self.checkpoints["spark"]
        application = WatchedApplication(*self._place("spout", "s"), self.make_rows, checkpoint)
        application.repeats, application.retries = self.checker.repeats, self.checker.retries
        application.root_ids = self.checker.root_ids
        application.state = self.checker.state
        return self._with_faults(application)

    def bolt_application(self, bolt: str, checkpoint: str = "") -> SparkApplication:
        """Return the Spark application of a bolt, with a checkpoint of another name if asked for."""
        function, kept = (
            partial(self._bolt_rows, self.minds[bolt]),
            self.checkpoints[checkpoint or f"{bolt}0"],
        )
        return self._with_faults(SparkApplication(*self._place("bolt", bolt), function, kept))

    def _place(self, kind: str, name: str) -> tuple[Kernel, Process, dict[str, str]]:
        options = {"kafka.bootstrap.servers": BOOTSTRAP, "topology": NAME, kind: name}
        options |= {"allowSkip": "true"} if kind == "spout" and self.allows_skip else {}
        return self.kernel, self.kernel.current.process, options

    def _with_faults(self, application: SparkApplication) -> SparkApplication:
        # Somebody upgrades Spark, and goes back.
        application.calls = self.version_draw.choice([Calls.WITH_START, Calls.WITHOUT_START])
        application.executors.speculates = lambda _attempt: self.stage_draw.random() < self.speculation
        application.executors.cuts_off = lambda _attempt: self._is_cut_off()
        application.executors.outlive_driver_s = lambda: self.outlive_s
        return application

    def _bolt_rows(self, mind: Mind, row: Any) -> list[Any]:
        """Return what a bolt in Spark makes of a tuple: rows with values, or one that fails."""
        if mind.chance(mind.temper.fail):
            mind.excuse(row)
            return [{"value": b"", "fail": "drawn"}]
        self.checker.count("executed in Spark")
        return [{"value": value, "key": value} for value in mind.children_of(row)]

    def _is_cut_off(self) -> bool:
        """Draw whether what is above a writing task fails, after the rows were read."""
        if not self.cutting or self.stage_draw.random() >= self.cutting:
            return False
        self.checker.count("input of a task cut off")
        return True

    def make_rows(self, row: Any) -> list[Any]:
        """Return what Spark makes of a record: rows with values, or rows that fail."""
        retry_after_ms = self.stage_mind.retry_of(row.value)
        if retry_after_ms != BACK_OFF:
            self.checker.count(f"{reason_for(retry_after_ms)} by a stage")
            plain = {"value": b"", "fail": reason_for(BACK_OFF)}
            delay_s = None if retry_after_ms == NEVER else retry_after_ms / 1000
            says = {
                "fail": reason_for(retry_after_ms),
                "retry": delay_s is not None,
                "retry_after_s": delay_s,
            }
            return [plain, {"value": b"", **says}, plain]
        count = self.stage_draw.choice([0, 1, 1, 2, 3])
        return self.checker.execute(STAGE, row.topic, row.partition, row.offset, row.value, count)

    def _write_source(self, count: int, interval_s: float) -> None:
        """Append source records over time."""
        self.source_left = count

        def write() -> None:
            topic = self.cluster.topics[SOURCE]
            log = self.draw.choice(topic.partitions)
            self.source_left -= 1
            key = b"k%d" % self.draw.randrange(20)
            log.append(key, b"r%d|" % self.source_left, (), None, None, "world")
            if self.source_left:
                self.kernel.call_after(interval_s, write)

        self.kernel.call_after(0.0, write)

    def write_untracked(self, topic: str, value: bytes) -> None:
        """Append a record to a topic of tuples, as a producer does that knows nothing of trees."""
        log = self.untracked_draw.choice(self.cluster.topics[topic].partitions)
        log.append(value, value, (), None, None, "world")
        self.checker.count("untracked")

    def _write_untracked(self, count: int) -> None:
        """Append untracked records to random topics over time."""

        def write(value: bytes) -> None:
            self.write_untracked(self.untracked_draw.choice(sorted(self.checker.readers)), value)

        for number in range(count):
            self.kernel.call_after(
                self.untracked_draw.uniform(0.0, UNTRACKED_S), partial(write, b"w%d|" % number)
            )

    def _add(self, name: str, kind: str, make: Callable[[], Any], group: str = "") -> None:
        self.roles.append(Role(name, kind, make, group))

    def start(self, role: Role) -> None:
        """Start a process for a role."""
        if role.process is not None:
            self._replaced.add(role.process)
        process = self.kernel.process(role.name)
        role.process, role.service = process, None
        if role.group in self.cluster.groups:
            group = self.cluster.groups[role.group]
            self.checker.check_state()
            is_spout = role.kind == "spark"
            done = done_by_spout(self.checker.state, group) if is_spout else done_by_bolts(group)
            self.checker.repeats.begin(process, group, done)

        def run() -> None:
            role.service = role.make()
            role.service.run()

        self.kernel.spawn(process, run, role.name)

    def start_beside(self, role: Role, make: Callable[[], Any]) -> None:
        """Start one more process of a role, in a place of its own."""
        self._add(f"{role.name}.second", role.kind, make, role.group)
        self.start(self.roles[-1])

    # Running.

    def look_at_breakers(self) -> None:
        """Count breakers that open and close."""
        for role in self.roles:
            breaker = getattr(role.service, "breaker", None)
            if breaker is None or breaker.is_open == (role.name in self._open_breakers):
                continue
            if breaker.is_open:
                self._open_breakers.add(role.name)
                self.checker.count("breaker open")
            else:
                self._open_breakers.discard(role.name)
                self.checker.count("breaker closed again")

    def watch(self) -> None:
        """Start again what has ended, a little later, and note why it ended."""
        ended, self.kernel.ended = self.kernel.ended, []
        for process in ended:
            role = next((role for role in self.roles if role.process is process), None)
            if role is None:
                if process in self._replaced:
                    self._end_process(process)
                continue
            self._end_process(process)
            self._check_end(role, process)
            role.process = None
            if role.is_wanted:
                self.kernel.call_after(self.draw.uniform(*RESTART_S), partial(self.start_again, role))

    def start_again(self, role: Role) -> None:
        """Start a role that has no process."""
        if role.process is None and role.is_wanted:
            self.start(role)

    def _end_process(self, process: Process) -> None:
        """End a process whose code has ended by itself: what its clients had not sent is lost."""
        if process.is_alive:
            for at_death in process.at_death:
                at_death()
            process.is_alive = False

    def _check_end(self, role: Role, process: Process) -> None:
        error = process.error
        if error is None:
            return
        self.checker.log_event(f"{role.name} ended: {type(error).__name__}: {error}")
        self.checker.count(f"ended: {role.kind}: {type(error).__name__}")
        if not isinstance(error, AcktreeError | KafkaException):
            raise error

    def lost_thread(self) -> str:
        """Return what has ended a thread of a process that goes on without it, "" if nothing has."""
        for process in self.kernel.processes:
            goes_on = process.is_alive and any(task.name == process.name for task in process.tasks)
            if goes_on and process.error is not None:
                return f"{process.name} goes on without a thread that has ended: {process.error!r}"
        return ""

    def frontier_of(self, place: Place) -> int:
        """Return how far a driver has committed a partition, whatever operators have set since."""
        self.checker.check_state()
        return self.checker.state.slots[place].frontier

    @property
    def is_done(self) -> bool:
        """Whether every message was acked, or the frontiers have reached the ends of the source."""
        if not self.is_spark:
            return len(self.checker.acked | self.checker.exhausted) == self.message_count
        group = self.cluster.groups.get(self.spout_group)
        if group is None or self.source_left:
            return False
        for log in self.cluster.topics[SOURCE].partitions:
            committed = group.offsets.get((SOURCE, log.number))
            slot = self.checker.state.slots.get((SOURCE, log.number))
            reached = (
                min(committed.offset, slot.frontier) if committed is not None and slot is not None else 0
            )
            if reached <= log.last_committed:
                return False
        return True

    def heal(self) -> None:
        """End every fault, and let every bolt behave."""
        self.cluster.is_up = True
        self.cluster.holds = lambda _writer, _topic, _age_s: False
        self.world.cut_off.clear()
        self.world.delay_s = self.delay_s
        self.speculation = self.cutting = self.outlive_s = 0.0
        for messages in self.messages.values():
            messages.silent_until_s = 0.0
        self.world.lose_response = lambda _process, _call: False
        self.kernel.on_call = lambda _process, _call: None
        self.cluster.transactions.marker_delay_s = lambda: 0.0
        for process in self.kernel.processes:
            process.is_stopped = False
        for name, running in [(role.name, role.process) for role in self.roles if role.is_alone]:
            # An operator ends all but one, as docs/worker.md says: the group refuses each start of another.
            others = [each for each in self.kernel.processes if each.name == name and each is not running]
            self.kernel.kill_all(others)
        for mind in self.minds.values():
            mind.temper.is_healed = True
        self.stage_temper.is_healed = True
        self.checker.timeouts.heal(self.kernel.now_s)
