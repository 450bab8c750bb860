"""Asks whether the present leader of a partition still has the log that was read of an earlier one (KIP-320).

Invariant: only an answer for a partition says anything about it; one without a leader is left out.
"""

from collections.abc import Mapping

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer
from acktree.core.kafka.log_reader import Found, LogReader, Place, reader_settings
from acktree.core.kafka.settings import Settings
from acktree.wire.state_records import LogEpoch

_WAIT_S = 0.1
_FEW_BYTES = {"fetch_message_max_bytes": 1, "queued_min_messages": 1}
"""The answer comes before the first record, which is not needed."""


def look_at_epochs(
    bootstrap: str, group: str, user: Settings, epochs: Mapping[Place, LogEpoch]
) -> dict[Place, int | None]:
    """Return where logs that were read have ended before a later leader went on; None where all is there.

    A client asks with OffsetForLeaderEpoch before it fetches from a position that has an epoch. Partitions of
    which no leader says anything within BROKER_TIMEOUT_S are left out.

    Raises:
        BrokerRefused, NotAuthorized: see their docstrings.
    """
    found: dict[Place, int | None] = {}
    if not epochs:
        return found
    consumer = make_consumer(reader_settings(bootstrap, group, user, **_FEW_BYTES))
    try:
        reader = LogReader(consumer, bootstrap, group, user)
        deadline_s = world.monotonic_s() + BROKER_TIMEOUT_S
        reader.begin({place: each.end for place, each in epochs.items()}, epochs)
        while reader.places and world.monotonic_s() < deadline_s:
            for place, what, start, *_ in reader.read(len(epochs), _WAIT_S):
                if what is not Found.GONE:
                    found[place] = start if what is Found.FELL else None
                reader.end([place] if place in reader.places else ())
            at_end = [place for place in reader.places if reader.is_at_end(place)]
            found |= dict.fromkeys(at_end)
            reader.end(at_end)
    finally:
        consumer.close()
    return found
