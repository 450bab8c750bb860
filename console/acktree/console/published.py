"""Reads all topologies that are published on a cluster, and checks what no two may have in common."""

from acktree.core.errors import BadTopology
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_admin
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import Settings
from acktree.core.topology.file import Topology, registry_topic
from acktree.core.topology.registry import Published, read_histories


def all_published(bootstrap: str, settings: Settings) -> list[Published]:
    """Return the newest version of every topology, by name.

    A topic of somebody else that ends like a registry is left out.

    Raises:
        BrokerUnreachable, NotAuthorized: see their docstrings.
    """
    admin = make_admin(bootstrap, settings)
    with clear_errors(bootstrap):
        topics = admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
    ending = registry_topic("")
    names = sorted(topic.removesuffix(ending) for topic in topics if topic.endswith(ending))
    return [history.latest for history in read_histories(bootstrap, names, settings)]


def refuse_shared_topics(wanted: Topology, bootstrap: str, settings: Settings) -> None:
    """Raise BadTopology where another topology emits to a topic of tuples of this one.

    Bolts of both would read the tuples of both: they ack to their own ackers, where the root id of the other
    topology may be that of another record.

    Raises:
        NotAuthorized: a registry may not be read, so nothing is known.
    """
    emitted = wanted.emitted_topics()
    for other in all_published(bootstrap, settings):
        shared = [topic for topic in other.emitted_topics() if topic in emitted]
        if shared and other.name != wanted.name:
            raise BadTopology(
                f"topic {shared[0]!r} has the tuples of topology {other.name!r}, and topologies cannot "
                f"share a topic: emit to another topic, such as {wanted.name}.{shared[0]}"
            )
