"""What a test needs of the machine: without it a laptop skips the test, and a run with CI set fails it."""

import os
import shutil
from typing import NoReturn

import pytest

from acktree.console.devbroker.jars import JarsUnavailable, broker_jars
from acktree.console.devbroker.java import MissingJava, find_java


def give_up(reason: str) -> NoReturn:
    """Skip the test, or fail it where CI is set: a green run there has tried everything."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def program(*names: str) -> str:
    """Return the path of the first of some programs that is installed."""
    for name in names:
        if found := shutil.which(name):
            return found
    give_up(f"no {names[0]} to test with: install it")


def kafka() -> None:
    """Give the test up where this machine cannot run a Kafka of its own; starts none to know it."""
    try:
        find_java()
        broker_jars()
    except (MissingJava, JarsUnavailable) as reason:
        give_up(f"no Kafka to test with: {reason}")
