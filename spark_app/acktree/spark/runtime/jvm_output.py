"""Passes on what Spark's JVM, and the Python workers below it, print on stderr, without the chatter.

Invariant: a line is dropped if it is one of CHATTER, which every start prints, or if a stop is under way:
records cut off then are replayed. Every other line is passed on. If ``spark-submit`` has started the JVM, its
output cannot be filtered here. Private parts of Spark used: the gateway that a context finds, and the server
that takes the updates of accumulators.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

STDERR = 2
CHATTER = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"WARNING: package sun.security.action not in java.base",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe has been called",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers of class ",
    b"WARNING: A restricted method in java.lang.System has been called",
    b"WARNING: java.lang.System::load",
    b"WARNING: Use --enable-native-access=ALL-UNNAMED",
    b"WARNING: Restricted methods will be blocked in a future release",
    b"Setting default log level to ",
    b"To adjust logging level use sc.setLogLevel(newLevel).",
    b"Using Spark's default log4j profile: ",
    b"Using Spark's repl log4j profile: ",
)
"""How lines begin that the JVM and Spark print whatever the log level is; none needs anything done."""

PY4J = "py4j"
PY4J_LOGGERS = (None, "py4j.clientserver", "py4j.java_gateway")
"""Those that py4j logs errors with; None is the root."""

_stopping = Event()


def is_chatter(line: bytes) -> bool:
    """Tell whether a line says nothing about this run.

    >>> is_chatter(b"WARNING: Using incubator modules: jdk.incubator.vector")
    True
    >>> is_chatter(b"Error occurred during initialization of VM")
    False
    """
    return line.startswith(CHATTER)


def launch_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM that the next session runs in, unless there is one; pass on what it prints."""
    _stopping.clear()
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    reading, writing = os.pipe()
    Thread(target=_pass_on, args=(reading,), name="acktree-jvm-output", daemon=True).start()
    try:
        conf = SparkConf().setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def begin_stop() -> None:
    """Drop output until the next JVM is launched; may be called from a signal handler."""
    _stopping.set()


def is_stopping() -> bool:
    """Tell whether a stop is under way."""
    return _stopping.is_set()


def silence_lost_jvm(context: SparkContext) -> None:
    """Keep the clients of the JVM in this process from printing tracebacks if it ends first in a stop."""
    for name in PY4J_LOGGERS:
        logging.getLogger(name).addFilter(_passes)
    server: Any = context._accumulatorServer
    report = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not is_stopping():
            report(request, address)

    server.handle_error = handle_error


def _passes(record: logging.LogRecord) -> bool:
    return not (is_stopping() and PY4J in Path(record.pathname).parts)


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not (is_stopping() or is_chatter(line)):
                with suppress(OSError):  # nobody listens any more; the JVM must not wait for that
                    os.write(STDERR, line)
