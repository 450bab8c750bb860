"""The process of a stage in Python: a member of a group that shares out the tasks of a spout.

Each task has its own thread and bolt, as in Storm. Invariant: a task is begun only while the group has
assigned it here; its next process fences this one, so a member that has not noticed writes nothing.
"""

import gc
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.errors import as_clear_error, is_forbidden, was_transient
from acktree.core.kafka.outages import log_retry
from acktree.core.kafka.settings import Settings, is_incremental, is_kip_848
from acktree.core.reports.liveness import Liveness, stuck_after_of
from acktree.core.reports.stats import Report
from acktree.core.topology.registry import History, Registry
from acktree.producers.bolt import AnyBolt
from acktree.producers.errors import BadHandler, UnknownComponent
from acktree.producers.functions import bolt_class_of
from acktree.producers.kafka.deadline_call import close_consumer
from acktree.producers.kafka.membership import group_settings
from acktree.producers.spouts.driver.owners import TakenOver
from acktree.producers.spouts.driver.spout_options import BadOption, SpoutOptions
from acktree.producers.spouts.state_topic import ZombieDriver
from acktree.producers.stages.stage_task import StageTask
from acktree.producers.worker.executing.bolt_kinds import check_bolt
from acktree.wire.state_records import StateStart

POLL_S = 0.1
REVOKE_S = 30.0
"""How long a task that moves may take to finish what is executed; then its next process fences it."""
RETRY_S = 1.0
"""How often a process tries to restart a task that ended because the broker was away, or was fenced."""
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
"""Moves only what must move; ``range`` would give all tasks to one member, as each has its own topic."""

_TRUTH: dict[str, object] = {"true": True, "false": False}
OPTIONS: dict[str, tuple[str, dict[str, object]]] = {
    "startingOffsets": ("starting_offsets", {"earliest": "earliest", "latest": "latest"}),
    "failOnDataLoss": ("fail_on_data_loss", _TRUTH),
    "allowSkip": ("allow_skip", _TRUTH),
}
"""Options of a stage: the field of SpoutOptions, and what each value means."""


log = logging.getLogger("acktree.spout")


class TaskThread:
    """One task, in its own thread."""

    def __init__(self, make: Callable[[], StageTask], driver_before: StateStart | None) -> None:
        """Begin to run what ``make`` makes."""
        self._make, self._driver_before = make, driver_before
        self.made: StageTask | None = None
        self.is_ready = self._is_stopping = False
        self.error: BaseException | None = None
        self._thread = world.start_thread(self._run, "stage task")

    def _run(self) -> None:
        try:
            self.made = self._make()
            if self._is_stopping:
                self.made.stop()
            self.made.run(self._driver_before, self._set_ready)
        except BaseException as error:  # user code may exit
            self.error = error

    def _set_ready(self) -> None:
        self.is_ready = True

    def stop(self) -> None:
        """Ask it to end."""
        self._is_stopping = True
        if self.made is not None:
            self.made.stop()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more; ``error`` is what has ended it."""
        return not self._thread.is_alive()


class LivenessOfTasks(Liveness):
    """Stands still where one of the tasks does."""

    def __init__(self, stuck_after_s: float, tasks: Callable[[], Iterable[StageTask]]) -> None:
        super().__init__(stuck_after_s)
        self._tasks = tasks

    @property
    def turn_s(self) -> float:
        """That of the task whose turn lasts longest."""
        return max((task.progress.turn_s for task in self._tasks()), default=0.0)

    @property
    def stalled_s(self) -> float:
        """That of the task that has been stalled for longest."""
        return max((task.progress.stalled_s for task in self._tasks()), default=0.0)


class StageWorker:
    """Runs the tasks of one spout that reads topics, as the group shares them out."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        stage: "AnyBolt | Callable[..., object]",
        *,
        name: str | None = None,
        user: Settings | None = None,
        options: Mapping[str, object] | None = None,
        ready: Callable[[str], None] = lambda _text: None,
        stuck_after_s: float | None = None,
    ) -> None:
        """Connect; no other process of the spout is fenced before ``run``. ``options``: of SpoutOptions.

        ``stage`` is a function by @stage, a class of bolt or a function that makes one, for each task one; or
        a bolt, if the spout has one task.

        Raises:
            UnknownTopology, UnknownComponent, BrokerUnreachable, RefusedSetting: see their docstrings.
            BadHandler: see its docstring.
        """
        self._stage, bolt = stage, _bolt_of(stage)
        check_bolt(bolt)
        self._bootstrap, user = bootstrap, user or {}
        self._registry = Registry(bootstrap, topology, user)
        try:
            self._prepare(bolt, name, user, dict(options or {}), ready, stuck_after_s)
        except BaseException:
            self._registry.close()
            raise

    def _prepare(
        self,
        bolt: AnyBolt,
        name: str | None,
        user: Settings,
        options: dict[str, object],
        ready: Callable[[str], None],
        stuck_after_s: float | None,
    ) -> None:
        latest = self._registry.history.latest
        self.name = find_stage_name(self._registry.history, bolt, name)
        table, self._tasks = latest.spouts[self.name], latest.spout_tasks[self.name]
        self._refuse_shared_bolt()
        given = {"starting_offsets": table.spark.starting_offsets} | options
        given.setdefault("fail_on_data_loss", table.spark.fail_on_data_loss)
        place = self._bootstrap, self._registry.history.name
        self._options = SpoutOptions(*place, self.name, kafka=user, has_blocks=False, **given)  # type: ignore[arg-type]
        stuck_s = stuck_after_of(user) if stuck_after_s is None else stuck_after_s
        self.progress: Liveness = LivenessOfTasks(stuck_s, self._made)
        self._set_ready: Callable[[str], None] = ready
        self._threads: dict[int, TaskThread] = {}
        """Of the tasks that are assigned."""
        self._leaving: list[TaskThread] = []
        self._is_joined = self._is_ready = self._stopping = False
        self._retry_at_s: dict[int, float] = {}
        self._is_asking = self._is_member = False
        self._ask_at_s = 0.0
        self._driver_before: StateStart | None = None
        self._checked: StageTask | None = self._make_task(self._tasks[0], bolt)
        """Made to find what is wrong before anything runs, and to read who runs the spout."""
        self._user = {**({} if is_kip_848(user) else COOPERATIVE), **user}
        group = latest.members_group(self.name)
        settings = group_settings(self._bootstrap, group, self._user, exactly_once=True)
        self._consumer = make_consumer({**settings, "queued.min.messages": 1, "on_commit": self._on_commit})

    def _refuse_shared_bolt(self) -> None:
        """Raise BadHandler for one bolt that several tasks would execute concurrently."""
        if isinstance(self._stage, AnyBolt) and len(self._tasks) > 1:
            raise BadHandler(
                f"spout {self.name} has {len(self._tasks)} tasks, and a bolt serves one of them: "
                f"give its class, {type(self._stage).__name__}, not an instance"
            )

    def _make_task(self, task: int, bolt: AnyBolt) -> StageTask:
        progress = Liveness(self.progress.stuck_after_s)
        return self.make_task(replace(self._options, task=task), bolt, progress)

    def make_task(self, options: SpoutOptions, stage: AnyBolt, progress: Liveness) -> StageTask:
        """Return a task; a test watches it."""
        return StageTask(options, stage, progress)

    def _made(self) -> list[StageTask]:
        return [thread.made for thread in [*self._threads.values()] if thread.made is not None]

    @property
    def reports(self) -> "StageReports":
        """What is reported of the tasks that run here."""
        return StageReports(self._made)

    def stop(self) -> None:
        """Ask ``run`` to end after the records that are executed; may be called from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Run until stopped.

        Raises:
            TakenOver: Spark has taken the spout over. What ends one of the tasks: see ``StageTask.run``.
        """
        try:
            self._look_at_driver()
            self._subscribe()
            while not self._stopping:
                self._poll()
                self._follow_tasks()
                self._watch_threads()
        finally:
            self._close()

    def _look_at_driver(self) -> None:
        """Read which driver of all tasks was the last, and so may be fenced; then drop what has told it."""
        checked, self._checked = self._checked, None
        assert checked is not None, "run is called once"
        try:
            self._driver_before = checked.driver_start()
        finally:
            checked.close()

    def _topic_of(self, task: int) -> str:
        return self._registry.history.latest.result_topic(task)

    def _subscribe(self) -> None:
        topics = [self._topic_of(task) for task in self._tasks]
        self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _poll(self) -> None:
        """Serve the group. Its partitions are paused: only errors come."""
        message = self._consumer.poll(POLL_S)
        error = message.error() if message is not None else None
        if error is None:
            return
        if error.code() == KafkaError._FATAL or is_forbidden(error):
            raise as_clear_error(error, self._bootstrap, f"the group of spout {self.name}")
        log.info("action=kafka_error reason=%s", error)

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        places = [TopicPartition(place.topic, place.partition, 0) for place in assigned]
        (consumer.incremental_assign if is_incremental(self._user) else consumer.assign)(places)
        if places:
            consumer.pause(places)
        self._is_joined = True
        for place in places:
            if not self._stopping:
                self._start(_task_in(place))

    def _start(self, task: int) -> None:
        before = [*self._leaving] if isinstance(self._stage, AnyBolt) else []

        def make() -> StageTask:
            for thread in before:  # its bolt serves one task at a time
                thread.join()
            return self._make_task(task, _bolt_of(self._stage))

        self._threads[task] = TaskThread(make, self._driver_before)

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        self._let_go(revoked, REVOKE_S)

    def _on_lost(self, _: Consumer, lost: list[TopicPartition]) -> None:
        self._let_go(lost, 0.0)

    def _let_go(self, places: Sequence[TopicPartition], wait_s: float) -> None:
        """End the tasks of these topics; those that take longer end later, fenced by their next process."""
        ending = [self._threads.pop(task) for task in map(_task_in, places) if task in self._threads]
        for thread in ending:
            thread.stop()
        until_s = world.monotonic_s() + wait_s
        for thread in ending:
            thread.join(max(0.0, until_s - world.monotonic_s()))
        self._leaving += ending

    def _follow_tasks(self) -> None:
        """Follow a newer version of the topology that has other tasks for the spout."""
        self._registry.refresh()
        tasks = self._registry.history.latest.spout_tasks.get(self.name, ())
        if tasks and tasks != self._tasks:
            self._tasks = tasks
            self._refuse_shared_bolt()
            self._subscribe()

    def _watch_threads(self) -> None:
        """Restart tasks that have ended while the process runs.

        A newer version of the topology has ended them, or another process that has fenced them and lost
        them since, or a broker that was away. Before this process is ready, such a broker ends it.
        """
        for thread in [each for each in self._leaving if each.has_ended]:
            self._leaving.remove(thread)
            self._raise_if_final(thread)
            del thread
            gc.collect()
        for task, thread in [*self._threads.items()]:
            if not thread.has_ended:
                continue
            self._raise_if_final(thread)
            if task in self._tasks and (thread.error is None or self._may_retry(task, thread.error)):
                self._start(task)
                gc.collect()  # clients that are in cycles, with their connections
        self._is_member = False  # that was the answer of a moment ago
        if self._is_joined and not self._is_ready and all(each.is_ready for each in self._threads.values()):
            self._is_ready = True
            self._set_ready(f"ready spout {self.name} of topology {self._options.topology}")

    def _raise_if_final(self, thread: TaskThread) -> None:
        """Raise what has ended a task, unless the task can be restarted."""
        if not (self._is_ready and thread.error is not None and was_transient(thread.error)):
            _raise_if_not_fenced(thread)

    def _may_retry(self, task: int, error: BaseException) -> bool:
        """Return whether to restart a task now that ``error`` has ended it."""
        if not was_transient(error):
            return self._still_has(task)
        if world.monotonic_s() < self._retry_at_s.get(task, 0.0):
            return False
        self._retry_at_s[task] = world.monotonic_s() + RETRY_S
        text = "task %d of spout %s is started again: %s"
        log_retry(log, text, task, self.name, error, action="task_retry")
        return True

    def _still_has(self, task: int) -> bool:
        """Return whether the group says that this process is a member: then it has what was not revoked.

        It asks by a commit, which the group accepts only from members of its generation, and whose answer
        comes while it polls.
        """
        if not self._is_member and not self._is_asking and world.monotonic_s() >= self._ask_at_s:
            self._ask_at_s = world.monotonic_s() + RETRY_S
            self._is_asking = True
            self._consumer.commit(offsets=[TopicPartition(self._topic_of(task), 0, 0)], asynchronous=True)
        return self._is_member

    def _on_commit(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        self._is_asking = False
        why = error or next((place.error for place in places if place.error is not None), None)
        self._is_member = why is None
        if why is not None:
            log.info("action=task_not_held spout=%s reason=%s", self.name, why)

    def _close(self) -> None:
        """End all tasks, then leave the group; raise what has ended one of them."""
        threads = [*self._threads.values(), *self._leaving]
        for thread in threads:
            thread.stop()
        if self._checked is not None:
            self._checked.close()
        try:
            for thread in threads:
                thread.join()
        finally:
            close_consumer(self._consumer)
            self._registry.close()
        for thread in threads:
            _raise_if_not_fenced(thread)


class StageReports:
    """What the tasks of a stage's process report."""

    def __init__(self, tasks: Callable[[], Iterable[StageTask]]) -> None:
        self._tasks = tasks

    @property
    def newest(self) -> Sequence[Report]:
        """The newest reports."""
        return [report for task in self._tasks() for report in task.reports]


def _task_in(place: TopicPartition) -> int:
    return int(place.topic.rpartition("-")[2])


def _raise_if_not_fenced(thread: TaskThread) -> None:
    """Raise what has ended a task; that another process has taken it over is what the group has wanted."""
    error = thread.error
    if error is not None and (isinstance(error, TakenOver) or not isinstance(error, ZombieDriver)):
        raise error


def _bolt_of(stage: "AnyBolt | Callable[..., object]") -> AnyBolt:
    """Return a bolt; a new one unless ``stage`` is one."""
    made = bolt_class_of(stage) or stage
    return cast(AnyBolt, made if isinstance(made, AnyBolt) or not callable(made) else made())


def parse_stage_options(given: Mapping[str, str]) -> dict[str, object]:
    """Return options, named as those of the Spark source, as fields of SpoutOptions.

    Raises:
        BadOption: one is unknown, or has an invalid value.

    >>> parse_stage_options({"startingOffsets": "latest", "allowSkip": "true"})
    {'starting_offsets': 'latest', 'allow_skip': True}
    """
    found: dict[str, object] = {}
    for name, value in given.items():
        if name not in OPTIONS:
            raise BadOption(f"unknown option {name!r}; known options: {', '.join(OPTIONS)}")
        field, values = OPTIONS[name]
        if value not in values:
            raise BadOption(f"{name}={value!r}: must be {' or '.join(values)}")
        found[field] = values[value]
    return found


def find_stage_name(history: History, stage: AnyBolt, wanted: str | None) -> str:
    """Return the spout's name: ``wanted``, that of the stage, or the only spout that reads topics.

    Raises:
        UnknownComponent: the topology has no such spout, or several to choose from; or it reads no topics.
    """
    latest = history.latest
    reading = [name for name, table in latest.spouts.items() if table.topics]
    name = wanted or (stage.name if stage.name in latest.spouts else "")
    if not name and len(reading) == 1:
        return reading[0]
    existing = ", ".join(reading) or "none"
    if not name:
        raise UnknownComponent(
            f"topology {latest.name} has several spouts with topics, name one with --spout: {existing}"
        )
    if name not in latest.spouts:
        raise UnknownComponent(
            f"topology {latest.name} has no spout {name!r}; with topics it has: {existing}"
        )
    if name not in reading:
        raise UnknownComponent(
            f"spout {name} of topology {latest.name} reads no topics: a Spout class feeds it, not a stage"
        )
    return name
