"""All topologies that are published on a cluster."""

from acktree.schemas.client_settings import Settings
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_admin
from acktree.schemas.kafka_errors import clear_errors
from acktree.schemas.registry import Published, read_histories
from acktree.schemas.topology import registry_topic


def all_published(bootstrap: str, settings: Settings) -> list[Published]:
    """Return the newest version of every topology, by name.

    A topic of somebody else that ends like a registry is left out.

    Raises:
        BrokerUnreachable, NotAuthorized: see there.
    """
    admin = make_admin(bootstrap, settings)
    with clear_errors(bootstrap):
        topics = admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
    ending = registry_topic("")
    names = sorted(topic.removesuffix(ending) for topic in topics if topic.endswith(ending))
    return [history.latest for history in read_histories(bootstrap, names, settings)]
