"""The pytest fixture ``topology_tester``: testers that are closed when their test ends.

Invariant: loading it imports nothing of the extra ``testing``, so pytest works without it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def topology_tester() -> Iterator[Callable[..., Any]]:
    """Return a function that makes a TopologyTester, starts it, and stops it when the test ends.

    It takes the arguments of TopologyTester.
    """
    from acktree.testing import TopologyTester

    with ExitStack() as testers:
        yield lambda *parts, **named: testers.enter_context(TopologyTester(*parts, **named))
