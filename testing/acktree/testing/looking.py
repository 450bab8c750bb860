"""What an operator finds of a simulated topology: the console's own reading, as a process of the simulation.

Invariant: reading changes nothing of the topology. Groups look empty: the simulated broker describes none.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from confluent_kafka import TopicPartition

from acktree.console.view.cluster import Cluster, CommittedOffset, GroupStatus, Place
from acktree.schemas.clients import make_consumer, metadata_of
from acktree.testing.parts import BOOTSTRAP
from acktree.testing.tester import TopologyTester

Answer = TypeVar("Answer")

ANSWER_LIMIT_S = 300.0


class SimulatedCluster(Cluster):
    """Asks the simulated broker by a consumer what its admin client does not answer."""

    def groups(self, names: Sequence[str]) -> dict[str, GroupStatus]:
        """Return groups of an unknown state, without members."""
        return {name: GroupStatus("UNKNOWN", ()) for name in names}

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, CommittedOffset]:
        """Return what a group has committed; partitions without a commit are left out."""
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        asked = [TopicPartition(*place) for place in dict.fromkeys(places)]
        found = consumer.committed(asked, timeout=10)
        consumer.close()
        return {
            (entry.topic, entry.partition): CommittedOffset(entry.offset, metadata_of(entry))
            for entry in found
            if entry.offset >= 0
        }


def look(tester: TopologyTester, query: Callable[[Cluster], Answer]) -> Answer:
    """Return what a query of the console finds, in virtual time; raise what it raises.

    Raises:
        TookTooLong: it does not answer within ANSWER_LIMIT_S.
    """
    answers: list[Answer | BaseException] = []

    def ask() -> None:
        try:
            answers.append(query(SimulatedCluster(BOOTSTRAP, tester.topology.name, {})))
        except BaseException as error:
            answers.append(error)

    tester.kernel.spawn(tester.kernel.process("operator"), ask, "operator")
    tester.run_until(lambda: bool(answers), ANSWER_LIMIT_S, "an answer")
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer
