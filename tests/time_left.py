"""Ends a run in time: tests that would begin after ``ACKTREE_TEST_UNTIL`` are not run, but named at the end.

``.ci/run`` sets it, in seconds since 1970, for what need not run at each commit. ``ACKTREE_TEST_ORDER``, any
text, decides in which order the modules run: with another text others are reached. Without either, all tests
run in their usual order.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import pytest

UNTIL = "ACKTREE_TEST_UNTIL"
ORDER = "ACKTREE_TEST_ORDER"
_NOT_RUN = "acktree_not_run"


def is_over() -> bool:
    """Return whether nothing more may begin."""
    return time.time() > float(os.environ.get(UNTIL, "inf"))


def shuffle(items: list[pytest.Item]) -> None:
    """Put modules in the order that ACKTREE_TEST_ORDER names, equal in all processes of a run."""
    modules = sorted({str(item.path) for item in items})
    random.Random(os.environ[ORDER]).shuffle(modules)
    place = {module: number for number, module in enumerate(modules)}
    items.sort(key=lambda item: place[str(item.path)])


class TimeLeft:
    """The plugin: runs no test when the time is over, and says which were left out, and how to run them."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._not_run: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Leave a test out if the time is over."""
        if not is_over():
            return None
        self._not_run[item.nodeid.partition("::")[0]] += 1
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """In a process of several, hand on what was left out."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_NOT_RUN] = dict(self._not_run)
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a process has left out."""
        self._not_run.update(getattr(node, "workeroutput", {}).get(_NOT_RUN, {}))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Say what was left out, behind pytest's own last line."""
        if self._not_run and not hasattr(config, "workeroutput"):
            print(*left_out(self._not_run, self._command), sep="\n")


def left_out(not_run: Counter[str], command: str) -> Iterable[str]:
    """Yield a line for each module with tests that were not run."""
    yield f"NOT RUN, because the time was over: {not_run.total()} tests; `{command}` runs them"
    for module, count in sorted(not_run.items()):
        yield f"    {count:4} of {module}"
