"""No right that `acktree acl plan` lists may be missing: without any one, its role ends with one sentence,
or, where it only reads what topics take, goes on with one.

The broker denies what is not allowed; that the whole lists suffice is shown in test_roles.py.
"""

import io
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions, NewTopic
from pyspark import SparkFiles, TaskContext
from pyspark.serializers import SpecialLengths

from acktree.acker.service import Acker
from acktree.console.dead_letter_edit import carry_out, correct, read_open_dead_letter
from acktree.console.main import main
from acktree.console.rights import NoSuchRole, Right, Role, failed_values, rights
from acktree.console.spark_reports import RunBySpark, refuse_spark
from acktree.console.view.cluster import Cluster
from acktree.console.view.records.dead_letters import read_newest
from acktree.core import world
from acktree.core.errors import NotAuthorized
from acktree.core.reports.stats import ENGINE, SPARK, Report
from acktree.core.topology.file import Topology, parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.producers.bolt import BasicBolt, Emit
from acktree.producers.collecting.spout_emitter import SpoutEmitter
from acktree.producers.errors import DeliveryFailed
from acktree.producers.spout import Spout
from acktree.producers.spouts.driver.reports.reporter import Reporter
from acktree.producers.spouts.driver.sources.source_topics import UnknownPartition
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.stages.stage_worker import StageWorker
from acktree.producers.tuples import Tuple
from acktree.producers.worker.loop import Worker
from acktree.spark.driver.source_check import check_source
from acktree.spark.shared.batch_commits import BatchName
from acktree.spark.shared.options import SourceOptions
from acktree.spark.tasks.reading.read_task import read_offsets, read_tasks
from acktree.spark.tasks.writing.write_task import StagePlan, in_transaction, write_whole
from acktree.wire.codec import encode_ack_init, encode_result
from acktree.wire.control_records import ENTRY, AckInit, Cause, Failure, Result
from acktree.wire.header import decode_header, find_header
from acktree.wire.ids import root_id
from producers.cluster import RunningWorker, WorkerCluster, until
from security.secure_broker import WAIT_S, SecureBroker

END_OF_ROWS = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)
TEXT = """
name = "{name}"
message_timeout_s = 1
[spouts.numbers]
emits = ["{name}.a"]
[spouts.lines]
topics = ["{name}.lines"]
emits = ["{name}.a"]
max_attempts = 1
[bolts.copy]
reads = ["{name}.a"]
emits = ["{name}.b"]
[bolts.once]
reads = ["{name}.a"]
emits = ["{name}.b"]
exactly_once = true
"""
TOPOLOGY = parse_topology(TEXT.format(name="guarded"))
USERS = (f"guarded-{number}" for number in itertools.count())


class Copy(BasicBolt):
    def execute(self, tup: Tuple, emit: Emit) -> None:
        emit(tup.value)


class Numbers(Spout):
    """Gives up what fails, which makes a dead letter of it."""

    def retry(self, attempt: int, reason: str) -> None:  # type: ignore[override]
        return None

    def next_tuple(self, emitter: SpoutEmitter) -> None:
        emitter.emit(b"1", message_id=time.monotonic_ns())


@pytest.fixture(scope="module")
def cluster(secure: SecureBroker) -> WorkerCluster:
    """The published topology, and what writes tuples and inits to it as the super user."""
    secure.admin.create_topics([NewTopic("guarded.lines", 1)])["guarded.lines"].result(WAIT_S)
    apply_topology(secure.plain, TOPOLOGY, {})
    write_lines(secure.plain, "guarded.lines")
    made = WorkerCluster(secure.plain, "guarded")
    made.history = read_history(secure.plain, "guarded", {})
    made.version = made.history.latest.version
    return made


def write_lines(bootstrap: str, topic: str) -> None:
    """Write records with a transaction's marker between them: an offset that holds no record."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-test"})
    producer.init_transactions(WAIT_S)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"line")
        producer.commit_transaction(WAIT_S)


def needed_rights(role: Role, component: str | None = None) -> list[Right]:
    """Return the rights without which a role ends; without the others it goes on with a warning."""
    is_spout = role is Role.SPARK and component not in TOPOLOGY.bolts
    left_out = set(failed_values(TOPOLOGY)) if is_spout else set()
    return [
        right
        for right in rights(TOPOLOGY, role, component)
        if right.operation != "DescribeConfigs" and right not in left_out
    ]


def without_each(role: Role, component: str | None = None) -> pytest.MarkDecorator:
    """Parametrize over the rights of a role."""
    needed = needed_rights(role, component)
    return pytest.mark.parametrize(
        "missing", needed, ids=lambda right: f"{right.operation}-{right.resource}-{right.name}"
    )


def properties_without(
    secure: SecureBroker,
    missing: Right,
    role: Role,
    component: str | None = None,
    topology: Topology = TOPOLOGY,
):
    """Return how a new user connects who has all rights of a role but one."""
    user = next(USERS)
    secure.add_user(user)
    secure.allow(user, [right for right in rights(topology, role, component) if right != missing])
    return secure.properties(user)


def ends_forbidden(
    make: Callable[[], Acker | Worker | SpoutWorker | StageWorker], meanwhile: Callable[[], None]
) -> None:
    """Run what ``make`` returns until it ends with a sentence about rights; fail if it goes on."""
    ended: list[BaseException] = []
    made = []

    def run() -> None:
        try:
            made.append(make())
            made[0].run()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline_s = time.monotonic() + WAIT_S
    while thread.is_alive() and time.monotonic() < deadline_s:
        meanwhile()
        thread.join(0.2)
    if thread.is_alive():
        for running in made:
            running.stop()
        thread.join(WAIT_S)
        pytest.fail("it went on without the right")
    (error,) = ended
    assert isinstance(error, NotAuthorized | DeliveryFailed), repr(error)
    assert "authorization failed" in str(error).lower()
    assert "acktree acl plan --role" in str(error)


@without_each(Role.ACKER)
def test_an_acker_needs_each_of_its_rights(secure: SecureBroker, cluster: WorkerCluster, missing: Right):
    properties = properties_without(secure, missing, Role.ACKER)
    producer = Producer({"bootstrap.servers": secure.plain, "log_level": 0})
    entries = np.array([(root_id(0, 16, offset), 0) for offset in range(3)], ENTRY)

    def meanwhile() -> None:
        """Write inits of trees that are done at once, so that there is something to report."""
        producer.produce(
            "guarded.ack-init", encode_ack_init(AckInit(0, cluster.version, entries)), partition=0
        )
        producer.flush()

    ends_forbidden(lambda: Acker(secure.scram, "guarded", user=properties), meanwhile)


@pytest.mark.parametrize(
    ("name", "missing"),
    [(name, right) for name in ("copy", "once") for right in needed_rights(Role.BOLT, name)],
    ids=lambda each: each if isinstance(each, str) else f"{each.operation}-{each.resource}-{each.name}",
)
def test_a_bolt_needs_each_of_its_rights(
    secure: SecureBroker, cluster: WorkerCluster, name: str, missing: Right
):
    properties = properties_without(secure, missing, Role.BOLT, name)

    def meanwhile() -> None:
        cluster.emit(range(3))
        cluster.flush()

    ends_forbidden(lambda: Worker(secure.scram, "guarded", Copy(), name=name, user=properties), meanwhile)


@pytest.mark.parametrize("name", ["copy", "once"])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_bolt_that_may_not_read_topic_limits_works_and_logs_one_warning(
    secure: SecureBroker, cluster: WorkerCluster, name: str, allowed: bool, caplog: pytest.LogCaptureFixture
):
    user = next(USERS)
    secure.add_user(user)
    secure.allow(user, rights(TOPOLOGY, Role.BOLT, name) if allowed else needed_rights(Role.BOLT, name))
    worker = RunningWorker(Worker(secure.scram, "guarded", Copy(), name=name, user=secure.properties(user)))
    cluster.emit(range(3))
    until(lambda: worker.acked >= 3 or worker.error)
    worker.stop()
    said = [record.getMessage() for record in caplog.records if "limits" in record.getMessage()]
    assert len(said) == (0 if allowed else 1)
    assert allowed or ("guarded.b" in said[0] and "DescribeConfigs" in said[0])


@without_each(Role.SPOUT)
def test_a_python_spout_needs_each_of_its_rights(
    secure: SecureBroker, cluster: WorkerCluster, missing: Right
):
    properties = properties_without(secure, missing, Role.SPOUT)
    published = cluster.history.latest
    results = published.result_topic(published.spout_tasks["numbers"][0])

    def fail_all() -> None:
        if missing.name == published.dead_letter_topic:
            headers = [find_header(record.headers()) for record in cluster.read("guarded.a")[-10:]]
            fail(secure.plain, results, [decode_header(each).anchors[0].root for each in headers if each])

    ends_forbidden(lambda: SpoutWorker(secure.scram, "guarded", Numbers(), user=properties), fail_all)


def run_spark(secure: SecureBroker, properties: dict[str, str]) -> None:
    """Run a Spark spout in this process: read, write, receive failures, write dead letters.

    Returns when every line is done.
    """
    kafka = {f"kafka.{key}": value for key, value in properties.items()}
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": secure.scram, "topology": "guarded", "spout": "lines", **kafka}
    )
    driver = SpoutDriver(options)
    published = driver.topology
    history = read_history(secure.plain, "guarded", {})
    place = (secure.scram, properties, history, published.version, options.group)
    ends = driver.topics.log_ends()
    driver.open(None)
    deadline_s = time.monotonic() + WAIT_S
    logged = driver.position()
    while not driver.all_done(ends):
        assert time.monotonic() < deadline_s, "the lines were not done in time"
        driver.written(logged)
        driver.service(0.1)
        if (batch := driver.next_batch(ends, None)) is None:
            continue
        logged = batch
        rows = [rows for task in read_tasks(options, published, batch) for rows in read_offsets(task)]
        rows = [one.append_column("fail", pa.array(["no", *[None] * (len(one) - 1)])) for one in rows]
        plan = StagePlan(*place, BatchName(uuid.uuid4().hex, 0), spout="lines")
        run_as_sparks_worker_does(write_whole(iter(rows), plan, "guarded.a", in_transaction))
        (read,) = batch.ranges
        roots = [root_id(read.slot, read.run << 4, offset) for offset in range(read.start, read.end)]
        fail(secure.plain, published.result_topic(published.spout_tasks["lines"][0]), roots)
    driver.close()


def run_as_sparks_worker_does(task: Iterable[object]) -> None:
    """Run a task in a function that has a stream as Spark's worker has; it says that the rows are whole."""

    def main(infile: io.BufferedReader) -> None:
        list(task)

    main(io.BufferedReader(io.BytesIO(END_OF_ROWS)))


def fail(bootstrap: str, result_topic: str, roots: list[int]) -> None:
    """Report to a spout, as an acker would, that roots have failed."""
    failed = [Failure(root, Cause.FAILED, "test", "on purpose") for root in roots]
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(result_topic, encode_result(Result(0, failed=failed)), partition=0)
    assert producer.flush(WAIT_S) == 0


class OneTask(TaskContext):
    """The only Spark task of a job that leaves a hand-off."""

    def getLocalProperty(self, key: str) -> str:
        return "query.0"

    def taskAttemptId(self) -> int:
        return 0


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say to code that is meant for executors that this process runs a Spark task."""
    monkeypatch.setattr(TaskContext, "get", OneTask)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))


def correct_a_dead_letter(properties: dict[str, str], bootstrap: str) -> str:
    """Correct the newest dead letter of the guarded topology, which is of its line 0."""
    viewer = Cluster(bootstrap, "guarded", properties)
    try:
        found = max(read_newest(viewer, 100).dead_letters, key=lambda each: each.offset)
        letter, record = read_open_dead_letter(viewer, found.partition, found.offset)
        return carry_out(viewer, correct(letter, record, b"corrected"), properties)
    finally:
        viewer.close()


EDITOR_WRITES = {right for right in rights(TOPOLOGY, Role.EDITOR, None) if right.operation == "Write"}


@pytest.mark.parametrize("missing", [None, *sorted(EDITOR_WRITES, key=str)], ids=str)
def test_an_editor_corrects_a_dead_letter_and_needs_each_right_to_write(
    secure: SecureBroker, cluster: WorkerCluster, missing: Right | None
) -> None:
    producer = Producer({"bootstrap.servers": secure.plain})
    producer.produce("guarded.dead-letter", b"wrong", headers=[("acktree-origin", b"guarded.lines/0/0")])
    assert producer.flush(WAIT_S) == 0
    user = next(USERS)
    secure.add_user(user)
    secure.allow(user, [right for right in rights(TOPOLOGY, Role.EDITOR, None) if right != missing])
    if missing is None:
        assert correct_a_dead_letter(secure.properties(user), secure.scram).startswith("guarded.lines/0/")
        return
    with pytest.raises(NotAuthorized):
        correct_a_dead_letter(secure.properties(user), secure.scram)


class Lines(BasicBolt):
    name = "lines"

    def execute(self, tup: Tuple, emit: Emit) -> None:
        emit(tup.value)


STAGED = parse_topology(TEXT.format(name="staged"))
STAGE_IDS = [
    right
    for right in rights(STAGED, Role.SPOUT, "lines")
    if right.resource != "topic" and right.name.startswith("staged.lines")
]


@pytest.fixture(scope="module")
def staged(secure: SecureBroker) -> None:
    """Publish a topology of its own: what a stage does with the lines is not for the other tests."""
    secure.admin.create_topics([NewTopic("staged.lines", 1)])["staged.lines"].result(WAIT_S)
    apply_topology(secure.plain, STAGED, {})


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("missing", STAGE_IDS, ids=lambda right: f"{right.resource}-{right.name}")
def test_a_stage_needs_each_right_on_its_groups_and_ids(secure: SecureBroker, missing: Right) -> None:
    driver = SpoutDriver(SpoutOptions(secure.plain, "staged", "lines"))
    driver.open(None)  # which the stage fences
    driver.close()
    properties = properties_without(secure, missing, Role.SPOUT, "lines", STAGED)
    ends_forbidden(lambda: StageWorker(secure.scram, "staged", Lines, user=properties), lambda: None)


@pytest.mark.usefixtures("staged")
def test_the_role_of_a_stage_may_read_whether_spark_runs_its_spout(secure: SecureBroker) -> None:
    user = next(USERS)
    secure.add_user(user)
    secure.allow(user, rights(STAGED, Role.SPOUT, "lines"))
    report = Report("spout", "lines", "lines-0", world.wall_ms(), {ENGINE: SPARK, "host": "vm1", "pid": 4711})
    producer = Producer({"bootstrap.servers": secure.plain})
    producer.produce("staged.stats", report.encode())
    assert producer.flush(WAIT_S) == 0
    with pytest.raises(RunBySpark, match="process 4711 on host vm1"):
        refuse_spark(secure.scram, "staged", "lines", secure.properties(user), pytest.fail)


@pytest.mark.usefixtures("staged")
def test_a_stage_runs_with_the_rights_of_its_role(secure: SecureBroker) -> None:
    user = next(USERS)
    secure.add_user(user)
    secure.allow(user, rights(STAGED, Role.SPOUT, "lines"))
    ready = threading.Event()
    worker = StageWorker(
        secure.scram,
        "staged",
        Lines,
        user=secure.properties(user),
        ready=lambda _: ready.set(),
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
    finally:
        worker.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.usefixtures("cluster", "task")
@without_each(Role.SPARK)
def test_a_spark_spout_needs_each_of_its_rights(secure: SecureBroker, missing: Right):
    properties = properties_without(secure, missing, Role.SPARK)
    write_lines(secure.plain, "guarded.lines")  # what an earlier driver emitted may be done without a batch
    with pytest.raises((NotAuthorized, DeliveryFailed), match=r"(?i)authorization failed.*acl plan --role"):
        run_spark(secure, properties)


def test_a_forbidden_report_is_an_error_of_the_call_that_detects_it(secure: SecureBroker):
    missing = Right("topic", "guarded.stats", "Write")
    kafka = {f"kafka.{key}": value for key, value in properties_without(secure, missing, Role.SPARK).items()}
    reporter = Reporter(
        SourceOptions.parse(
            {"kafka.bootstrap.servers": secure.scram, "topology": "guarded", "spout": "lines", **kafka}
        )
    )
    report = Report("spout", "lines", "lines-0", 0, {})
    reporter.send("guarded.stats", [report])
    reporter.flush()
    with pytest.raises(NotAuthorized, match="acl plan --role"):
        reporter.check()
    with pytest.raises(NotAuthorized, match="acl plan --role"):
        until(
            lambda: reporter.send("guarded.stats", [report])
        )  # librdkafka knows it soon, and says so at once


GROWN = parse_topology(TEXT.format(name="grown"))


def test_a_spark_spout_leaves_new_partitions_to_those_who_may_publish(secure: SecureBroker):
    secure.admin.create_topics([NewTopic("grown.lines", 1)])["grown.lines"].result(WAIT_S)
    apply_topology(secure.plain, GROWN, {})
    user = next(USERS)
    secure.add_user(user)
    secure.allow(user, rights(GROWN, Role.SPARK, None))
    kafka = {f"kafka.{key}": value for key, value in secure.properties(user).items()}
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": secure.scram, "topology": "grown", "spout": "lines", **kafka}
    )
    check_source(options)
    secure.admin.create_partitions([NewPartitions("grown.lines", 2)])["grown.lines"].result(WAIT_S)
    with pytest.raises(UnknownPartition, match="do it with: acktree topology apply"):
        check_source(options)
    apply_topology(secure.plain, GROWN, {})
    check_source(options)


def uses_apply(right: Right) -> bool:
    """Return whether `topology apply` uses a right of the operator; the others read or replay."""
    return right.operation in ("Create", "Alter", "AlterConfigs") or (
        right.operation == "Write" and not right.is_prefix
    )


OPERATED = parse_topology(TEXT.format(name="operated"))
OTHER_SETTINGS = {"ackers": 2, "control_retention_s": 50_000.0, "min_insync_replicas": 1}


@pytest.mark.parametrize(
    "missing",
    [right for right in rights(OPERATED, Role.OPERATOR, None) if uses_apply(right)],
    ids=lambda right: f"{right.operation}-{right.resource}-{right.name}",
)
def test_an_operator_needs_each_right_that_apply_uses(secure: SecureBroker, unique: str, missing: Right):
    first = parse_topology(TEXT.format(name=unique))
    grown = first.model_copy(update=OTHER_SETTINGS)
    secure.admin.create_topics([NewTopic(f"{unique}.lines", 1)])[f"{unique}.lines"].result(WAIT_S)
    lacking = replace(missing, name=missing.name.replace("operated", unique))
    secure.add_user(user := next(USERS))
    secure.allow(user, [right for right in rights(first, Role.OPERATOR, None) if right != lacking])
    if is_change := missing.operation.startswith("Alter"):
        apply_topology(secure.plain, first, {})
    with pytest.raises(NotAuthorized, match="acktree acl plan --role"):
        apply_topology(secure.scram, grown if is_change else first, secure.properties(user))


def test_an_operator_may_change_the_settings_of_all_topics_of_a_topology(secure: SecureBroker, unique: str):
    first = parse_topology(TEXT.format(name=unique))
    secure.admin.create_topics([NewTopic(f"{unique}.lines", 1)])[f"{unique}.lines"].result(WAIT_S)
    secure.add_user(user := next(USERS))
    secure.allow(user, rights(first, Role.OPERATOR, None))
    apply_topology(secure.scram, first, secure.properties(user))
    plan = apply_topology(secure.scram, first.model_copy(update=OTHER_SETTINGS), secure.properties(user))
    changed = {change.topic.removeprefix(f"{unique}.") for change in plan.change}
    assert changed >= {"topology", "dead-letter", "stats", "ack-init", "ack", "spout-0"}


def test_the_role_that_reads_metrics_may_not_write_acks():
    for right in rights(TOPOLOGY, Role.UI, None):
        assert right.operation in ("Read", "Describe") or right.name == "guarded.stats"


@pytest.mark.parametrize(
    ("role", "component"), [(Role.BOLT, "lines"), (Role.SPOUT, "copy"), (Role.SPARK, "numbers")]
)
def test_a_component_that_cannot_run_in_a_role_is_refused(role: Role, component: str):
    with pytest.raises(NoSuchRole, match="it must be one of: "):
        rights(TOPOLOGY, role, component)


def test_the_plan_prints_options_of_kafkas_own_tool(tmp_path: Path):
    file = tmp_path / "topology.toml"
    file.write_text(TEXT.format(name="guarded"))
    plan = ["acl", "plan", "--role", "acker", "--principal", "User:CN=acker,O=us", "--file", str(file)]
    result = CliRunner().invoke(main, plan)
    assert result.exit_code == 0, result.output
    assert (
        '--add --allow-principal "User:CN=acker,O=us" --operation Write --topic guarded.spout- '
        "--resource-pattern-type prefixed"
    ) in result.output.splitlines()
    described = [
        json.loads(line) for line in CliRunner().invoke(main, [*plan, "--format", "json"]).output.splitlines()
    ]
    assert {
        "resource": "group",
        "name": "guarded.acker",
        "operation": "Read",
        "is_prefix": False,
        "principal": "User:CN=acker,O=us",
        "host": "*",
    } in described
