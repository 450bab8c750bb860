"""Where a bolt or spout may emit to: its topics in the newest topology version, and who reads them there.

Invariant: a target never changes; a new version makes new ones, so the ack of a tuple held since an old
version still counts the consumer edges of those who read its children then.
"""

from collections.abc import Iterable
from typing import NoReturn

from acktree.core.topology.registry import History, Published
from acktree.producers.errors import WrongTopic
from acktree.wire.header import encode_header


class Target:
    """One topic in one topology version, with the anchors of children whose parents are acked."""

    __slots__ = ("acked_children", "hashes", "head", "topic", "version")

    def __init__(self, topic: str, version: int, hashes: tuple[int, ...]) -> None:
        self.topic = topic
        self.version = version
        self.hashes = hashes
        self.head = encode_header(version, ())
        self.acked_children: list[bytes] = []


class Targets:
    """The targets of one component by topic; None means the only one."""

    def __init__(self, component: str, history: History) -> None:
        self.component = component
        self._history = history
        self._made: dict[tuple[int, str], Target] = {}
        self._current: dict[str | None, Target] = {}
        self.use_latest()

    def use_latest(self) -> None:
        """Use the newest known version; a component that it does not have keeps its targets."""
        latest = self._history.latest
        emits = _emits_of(latest, self.component)
        if emits is None:
            return
        current: dict[str | None, Target] = {}
        for topic in emits:
            place = latest.version, topic
            if place not in self._made:
                self._made[place] = Target(topic, latest.version, self._history.readers(*place).hashes)
            current[topic] = self._made[place]
        if len(emits) == 1:
            current[None] = current[emits[0]]
        self._current = current

    def find(self, topic: str | None) -> Target:
        """Return the target of a topic, for None the only one.

        Raises:
            WrongTopic: the component does not emit to the topic, or None is ambiguous.
        """
        return self._current.get(topic) or self._refuse(topic)

    def _refuse(self, topic: str | None) -> NoReturn:
        topics = [name for name in self._current if name is not None]
        if topic is None and topics:
            raise WrongTopic(f"{self.component} emits to several topics; specify one of: {', '.join(topics)}")
        raise WrongTopic(
            f"{self.component} emits to {topic or 'a topic'}, but its emits in the topology are: "
            f"{', '.join(topics) or 'none'}"
        )

    def all(self) -> Iterable[Target]:
        """Return the targets of every version used so far."""
        return self._made.values()


def _emits_of(published: Published, component: str) -> tuple[str, ...] | None:
    table = published.bolts.get(component) or published.spouts.get(component)
    return table.emits if table else None
