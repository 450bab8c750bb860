"""What an operator finds of a simulated topology: the console's own reading, as a process of the simulation.

Invariant: reading changes nothing of the topology.
"""

from collections.abc import Callable
from typing import TypeVar

from acktree.console.view.cluster import Cluster
from acktree.testing.parts import BOOTSTRAP
from acktree.testing.tester import TopologyTester

Answer = TypeVar("Answer")

ANSWER_LIMIT_S = 300.0


def look(tester: TopologyTester, query: Callable[[Cluster], Answer]) -> Answer:
    """Return what a query of the console finds, in virtual time; raise what it raises.

    Raises:
        TookTooLong: it does not answer within ANSWER_LIMIT_S.
    """
    answers: list[Answer | BaseException] = []

    def ask() -> None:
        try:
            answers.append(query(Cluster(BOOTSTRAP, tester.topology.name, {})))
        except BaseException as error:
            answers.append(error)

    tester.kernel.spawn(tester.kernel.process("operator"), ask, "operator")
    tester.run_until(lambda: bool(answers), ANSWER_LIMIT_S, "an answer")
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer
