"""Runs a user's transform as the Spark application of a spout or bolt, with a clean stop."""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from acktree.core.durations import parse_duration_s
from acktree.core.kafka.settings import Settings
from acktree.core.temporary_folder import temporary_folder
from acktree.core.topology.file import stats_topic
from acktree.core.user_code import load_callable
from acktree.producers.spouts.driver.reports.reporter import reports_of_start
from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.spark.driver.source_check import check_source
from acktree.spark.driver.spark_spout import report_stop
from acktree.spark.native.spark_home import plain_files
from acktree.spark.native.switch import why_off
from acktree.spark.runtime import available_now
from acktree.spark.runtime.class_archive import options_to_use
from acktree.spark.runtime.jvm_output import begin_stop, launch_jvm, silence_lost_jvm
from acktree.spark.runtime.short_errors import TRACEBACK, last_error
from acktree.spark.runtime.spark_version import HAS_ADMISSION_CONTROL
from acktree.spark.shared.options import SourceOptions
from acktree.spark.sink import narrow_writer, target_of
from acktree.spark.source import FORMAT, register
from acktree.spark.stage import BadTransform, Stage, Transform
from acktree.spark.tasks.writing.row_columns import check_columns
from acktree.spark.tasks.writing.transactions import BATCHES
from acktree.wire.errors import AcktreeError

log = logging.getLogger("acktree.spark")

AVAILABLE_NOW = "available-now"
LONGEST_SCRATCH = 60
"""In characters: Spark makes Unix sockets in the JVM's temporary folder, and their names end at 107."""

_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.speculation": "false",
    # Without native Hadoop each file of a checkpoint on local disk costs processes (chmod), its .crc as many.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


class BadFunction(AcktreeError):
    """MODULE:FUNCTION names something that cannot be imported or called."""


class QueryFailed(AcktreeError):
    """The streaming query ended with an error; records that are not done are replayed at the next start."""


class BadTrigger(AcktreeError):
    """The trigger is neither an interval nor ``available-now``."""


def trigger_ms(text: str) -> int:
    """Return an interval in milliseconds; raise BadTrigger for anything else.

    >>> trigger_ms("1s"), trigger_ms("500ms"), trigger_ms("2 minutes")
    (1000, 500, 120000)
    """
    try:
        if not text.strip()[-1:].isalpha():
            raise ValueError("an interval needs a unit")
        return round(parse_duration_s(text) * 1_000)
    except ValueError as error:
        raise BadTrigger(
            f"trigger {text!r}: must be available-now or an interval such as 500ms, 1s or 2m"
        ) from error


def load_function(place: str) -> Callable[..., Any]:
    """Return the function at MODULE:FUNCTION, which may also be in the working directory."""
    found: Callable[..., Any] = load_callable(place, "MODULE:FUNCTION", "jobs:split_lines", BadFunction)
    return found


def _load_before_spark(place: str) -> Callable[..., Any] | None:
    """Return the function at MODULE:FUNCTION, None if its module can be imported beside a session only.

    Columns and functions of Spark at the top of a module need one; any other mistake is found without.
    """
    try:
        return load_function(place)
    except BadFunction as error:
        cause = error.__cause__
        if isinstance(cause, PySparkException) and cause.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS":
            return None
        raise


def make_session(app_name: str, jvm_options: str = "", scratch: Path | None = None) -> SparkSession:
    """Return the session to run in: the active one, else a local one on all cores.

    A local one keeps its temporary files in ``scratch``, unless Spark is configured otherwise.

    The JVM starts from the archive of classes, if there is one, unless ``jvm_options`` say otherwise.
    Python workers run the interpreter that runs this, and find modules where this one does.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    paths = [path for path in (str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    settings = {"spark.app.name": app_name}
    is_local = "MASTER" not in os.environ and "SPARK_ENV_LOADED" not in os.environ
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if not why_off():
            settings["spark.python.daemon.module"] = "acktree.spark.daemon"
        settings["spark.master"] = f"local[{os.cpu_count() or 2},4]"
    if is_local and "SPARK_CONF_DIR" not in os.environ:
        # Shuffles of a streaming query do not adapt to their size: two rows would also take 200 tasks.
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 2)
    if "SPARK_CONF_DIR" not in os.environ:
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={quiet}{_collector()}"
        settings["spark.driver.extraJavaOptions"] += jvm_options or options_to_use()
    if is_local and scratch is not None and not {"SPARK_CONF_DIR", "SPARK_LOCAL_DIRS"} & os.environ.keys():
        settings["spark.local.dir"] = str(scratch)
        if len(str(scratch)) <= LONGEST_SCRATCH and " " not in str(scratch):  # options are cut at blanks
            settings["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={scratch}"
    settings |= _SESSION
    with (
        _own_interrupts(),
        plain_files() if is_local and not why_off() else contextlib.nullcontext(),
    ):
        launch_jvm(settings)
        session = SparkSession.builder.config(map={**settings}).getOrCreate()
    silence_lost_jvm(session.sparkContext)
    logging.getLogger("DataFrameQueryContextLogger").disabled = True  # repeats in JSON what is raised
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def _collector() -> str:
    """Return the JVM's option for its garbage collector.

    A first record cost 18.4 CPU seconds with the serial collector, 20.2 with G1, on two cores and without an
    archive of classes (`python benchmarks/spark_rates.py --start`).
    """
    return " -XX:+UseSerialGC" if (os.cpu_count() or 2) <= 2 else ""


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the handler of SIGINT: PySpark's own calls the JVM in the middle of another call to it."""
    if current_thread() is not main_thread():  # where nobody can set a handler
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def source_options(bootstrap: str, topology: str, spout: str, bolt: str, user: Settings) -> dict[str, str]:
    """Return the options of the source for a spout or bolt."""
    role = {"spout": spout} if spout else {"bolt": bolt}
    kafka = {f"kafka.{key}": value for key, value in user.items()}
    return {"kafka.bootstrap.servers": bootstrap, "topology": topology, **role, **kafka}


def start(
    spark: SparkSession,
    transform: Transform,
    options: Mapping[str, str],
    checkpoint: Path | str,
    trigger: str = "",
) -> StreamingQuery:
    """Start the query of a spout or bolt in any session, and return it; the source is registered there.

    ``options`` are those of the source. With ``plan=narrow`` the sink ``format("acktree")`` writes the rows,
    also in Spark Connect; otherwise a stage does. ``trigger`` is ``available-now`` or an interval such as
    ``1s`` or ``500ms``; "" runs batch after batch.

    Raises:
        BadTrigger: it is none of these.
        BadTransform, BadColumn: the transform, tried without rows, raises or returns what cannot be sent.
    """
    if reason := why_off(BATCHES):
        log.info("tasks write record by record: %s", reason, extra={"action": "no_batches"})
    interval_ms = None if trigger in ("", AVAILABLE_NOW) else trigger_ms(trigger)
    ends_by_itself = trigger == AVAILABLE_NOW and not HAS_ADMISSION_CONTROL
    if ends_by_itself:
        options = {**options, available_now.OPTION: "true"}
    checked = SourceOptions.parse(options)
    written = _declared if checked.plan else _staged
    writer = written(spark, transform, options).option("checkpointLocation", str(checkpoint))
    writer = writer.queryName(checked.group)
    if trigger == AVAILABLE_NOW and not ends_by_itself:
        writer = writer.trigger(availableNow=True)
    elif interval_ms is not None:
        writer = writer.trigger(processingTime=f"{interval_ms} milliseconds")
    query = writer.start()
    if ends_by_itself:
        available_now.stop_when_done(query)
    return query


def _staged(spark: SparkSession, transform: Transform, options: Mapping[str, str]) -> DataStreamWriter:
    """Return what writes a query by a stage, which finds out the shape of the plan by itself."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadOption(
            "a stage needs Spark's JVM, which Spark Connect does not expose: set option plan=narrow"
        )
    stage = Stage(transform, options)
    register(spark)
    # The source would ask the registry for the one option that Spark has to know.
    headers = {"includeHeaders": str(stage.options.include_headers).lower()}
    rows = spark.readStream.format(FORMAT).options(**options).options(**headers).load()
    stage.try_transform(rows.schema, spark)

    def write(batch: Any, batch_id: int) -> None:
        stage(batch, batch_id)

    return rows.writeStream.foreachBatch(write)


def _declared(spark: SparkSession, transform: Transform, options: Mapping[str, str]) -> DataStreamWriter:
    """Return what writes a query whose plan is declared narrow. Raises BadColumn, NotABroadcastJoin."""
    register(spark)
    output = transform(spark.readStream.format(FORMAT).options(**options).load())
    if isinstance(output, Mapping):
        if len(output) != 1:
            raise BadTransform(
                f"with plan=narrow there is one output, but the transform returned {len(output)}"
            )
        ((topic, output),) = output.items()
        options = {**options, "topic": topic}
    check_columns(output.schema, target_of(options.get("topic", "")))
    return narrow_writer(output, options)


def run(
    place: str,
    options: Mapping[str, str],
    checkpoint: Path | None,
    trigger: str,
    ready: Callable[[str], None],
) -> None:
    """Run MODULE:FUNCTION until its trigger is done, or SIGTERM or SIGINT arrives.

    Raises:
        AcktreeError: broker, topology, component or topic does not exist; raised before Spark starts.
        QueryFailed: the query ended with an error.
    """
    transform = _load_before_spark(place)
    if trigger not in ("", AVAILABLE_NOW):
        trigger_ms(trigger)
    checked = SourceOptions.parse(options)
    check_source(checked)
    stopping: list[int] = []
    _record_signals(stopping)
    with contextlib.ExitStack() as stack:
        if checkpoint is None:
            checkpoint = stack.enter_context(temporary_folder("checkpoint"))
        try:
            scratch = stack.enter_context(temporary_folder("spark"))
            with reports_of_start(checked, stats_topic(checked.topology)):
                spark = make_session(f"acktree {checked.group}", scratch=scratch)
                stack.callback(_stop_session, spark)
                query = start(spark, transform or load_function(place), options, checkpoint, trigger)
        except Exception:
            if stopping:
                return  # a signal to the whole process group also ends the JVM
            raise
        role = "spout" if checked.spout else "bolt"
        ready(f"ready {role} {checked.component} of topology {checked.topology}, query {query.id}")
        try:
            while not query.awaitTermination(1) and not stopping:
                pass
            begin_stop()
            spark.sparkContext.setLogLevel("OFF")  # the running batch is cut off; what it did is replayed
            query.stop()
        except Exception as error:
            # As above; the running batch is replayed.
            if not stopping:
                raise QueryFailed(_own_error(error) or _printed(error, ready)) from error
        if checked.spout:
            report_stop(checked)


def _stop_session(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):
        spark.stop()


def _record_signals(received: list[int]) -> None:
    """Make SIGTERM and SIGINT only append their number to ``received``, and what is printed from then on end.

    They may also have reached the JVM and the Python workers.
    """

    def record(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        begin_stop()

    signal.signal(signal.SIGTERM, record)
    signal.signal(signal.SIGINT, record)


def _own_error(error: BaseException) -> str | None:
    """Return the text of the innermost acktree error in a Spark error, which says all there is to say."""
    ours = [line.strip() for line in str(error).splitlines() if line.strip().startswith("acktree.")]
    return ours[-1].partition(": ")[2] or ours[-1] if ours else None


def _printed(error: BaseException, print_line: Callable[[str], None]) -> str:
    """Print a Spark error without the query's plan; return its text, without its stack."""
    text = str(error).partition("\n=== Streaming Query ===")[0].strip()
    print_line(text)
    return last_error(text) if TRACEBACK in text else text.partition("\n")[0] or type(error).__name__
