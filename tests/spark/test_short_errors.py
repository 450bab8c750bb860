"""Long errors of a batch reach the JVM short, and Spark still says what they were."""

import traceback
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from acktree.spark.runtime.short_errors import (
    MAX_CHARS,
    BatchFailed,
    is_interruption,
    shortened,
    with_short_errors,
)

CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling o7.collect.\n"
JAVA = (
    ": org.apache.spark.SparkException: Job 7 cancelled\n"
    + "\tat org.apache.spark.Line(Line.scala:7)\n" * 2_000
)


class Refused(Exception):
    """Stands for what py4j raises: its text is a whole Java stack."""


def is_stopped(spark: SparkSession, write: Callable[[], None]) -> bool:
    """Do what Spark does with an error of a batch while it stops a query: look whether a call was cut off."""
    jvm = spark.sparkContext._jvm
    execution = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
    try:
        write()
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        thrown = jvm.py4j.Py4JException(
            f"An exception was raised by the Python Proxy. Return Message: {text}"
        )
        return bool(execution.isInterruptionException(thrown, spark.sparkContext._jsc.sc()))
    raise AssertionError("it raises")


def refused() -> None:
    raise Refused(f"no good\n{CALL}{JAVA}")


def interrupted() -> None:
    raise Refused(f"{CALL}: java.lang.InterruptedException\n{JAVA}")


def test_spark_handles_a_long_error_of_a_batch_without_a_stack_overflow(spark: SparkSession) -> None:
    assert not is_stopped(spark, with_short_errors(refused))
    assert is_stopped(spark, with_short_errors(interrupted)), "a query that is stopped ends without an error"


def test_an_interrupted_call_is_still_recognised() -> None:
    text = f"Traceback (most recent call last):\n  File\n{CALL}: java.lang.InterruptedException\n{JAVA}"
    short = shortened(text)
    assert is_interruption(short)
    assert len(short) < MAX_CHARS


def test_a_short_error_passes_unchanged() -> None:
    def fail() -> None:
        raise ValueError("7")

    with pytest.raises(ValueError, match=r"^7$"):
        with_short_errors(fail)()


def test_a_shortened_error_begins_with_its_cause_and_does_not_look_interrupted() -> None:
    with pytest.raises(BatchFailed, match=r"Refused: no good") as raised:
        with_short_errors(refused)()
    assert len(str(raised.value)) < MAX_CHARS
    assert not is_interruption(str(raised.value))
