"""The environment of a Spark context while several queries of its session make the functions that write."""

import sys
from threading import Thread
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark import SparkContext

from acktree.spark.driver.writers import WRITERS, writers

ROUNDS = 3_000


@pytest.fixture
def hasty_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_concurrent_queries_are_distinguished(hasty_threads):
    context = SimpleNamespace(environment={"PYTHONHASHSEED": "0"})
    wrong: list[object] = []

    def write(first: int) -> None:
        try:
            for tasks in range(first, first + ROUNDS):
                with writers(cast(SparkContext, context), tasks):
                    if (seen := context.environment[WRITERS]) != str(tasks):
                        wrong.append(seen)
        except KeyError as error:
            wrong.append(error)

    queries = [Thread(target=write, args=(first,)) for first in (0, ROUNDS)]
    for query in queries:
        query.start()
    for query in queries:
        query.join()

    assert not wrong
    assert context.environment == {"PYTHONHASHSEED": "0"}
