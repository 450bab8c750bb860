"""Ending what a dead worker left open: its transaction holds back whoever reads the topics it wrote to.

Invariant: only an owner that a commit names is fenced, so one that has left its partitions in good order is
not; one that lives on loses its open transaction alone, which it may not commit for a partition that it lost.
Nothing is concluded where the broker does not answer: it ends such transactions itself when their time is up.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from acktree.producers.kafka.deadline_call import RELIEF_S, CallTimedOut, call_with_deadline
from acktree.producers.kafka.done_above import decode_owner
from acktree.schemas.clients import (
    Settings,
    admin_settings,
    is_transient,
    make_producer,
    metadata_of,
    producer_settings,
)

ASK_S = 5.0
"""How long a question waits for the broker before it is asked again."""

TRANSACTION_TIMEOUT_MS = 10_000
"""A dead worker's open transaction holds readers back for so long at most."""
HUNG_S = 10.0
"""So long the broker may take for all of it."""
_OF_LIVE_PRODUCERS = ("message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms")
"""Settings of records that are sent, and at odds with one another where none is."""

log = logging.getLogger("acktree.bolt")

MayWait = Callable[[], bool]


def find_owners(
    bootstrap: str, user: Settings, group: str, places: Sequence[tuple[str, int]], may_wait: MayWait
) -> set[bytes]:
    """Return who the last commits of these partitions name.

    Asked by an admin client, which does not wait for offsets that a transaction still holds back.
    """
    if not places:
        return set()
    owners: set[bytes] = set()
    admin = AdminClient(admin_settings(bootstrap, user))
    wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in places])]

    def ask() -> None:
        asked = admin.list_consumer_group_offsets(wanted, require_stable=False, request_timeout=ASK_S)
        for each in asked[group].result().topic_partitions:
            if each.error is None and each.offset >= 0:
                owners.add(decode_owner(metadata_of(each), each.offset))

    _insist(ask, may_wait, f"who owned the partitions of {group} before")
    return owners - {b""}


def end_transactions(
    bootstrap: str,
    user: Settings,
    group: str,
    places: Sequence[tuple[str, int]],
    may_wait: MayWait,
    own: bytes = b"",
) -> None:
    """End the open transactions of those who owned these partitions and did not leave them, but our ``own``.

    One that lives, and lost them, reads on from what is committed. Where the broker does not answer in
    HUNG_S, it ends them itself when their time is up. Raises what ``may_wait`` raises.
    """
    until_s = time.monotonic() + HUNG_S

    def has_time() -> bool:
        return may_wait() and time.monotonic() < until_s

    mine = {name: value for name, value in user.items() if name not in _OF_LIVE_PRODUCERS}
    for owner in find_owners(bootstrap, user, group, places, has_time) - {own}:
        settings = producer_settings(bootstrap, mine, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        fence(settings, transactional_id_of(group, owner), has_time)


def transactional_id_of(group: str, owner: bytes) -> str:
    """Return the transactional id of a worker, which commits name by its ``owner`` bytes."""
    return f"{group}-{owner.hex()}"


def fence(settings: Mapping[str, Any], transactional_id: str, may_wait: MayWait) -> None:
    """End the open transaction of a transactional id, and refuse its producer from here on."""
    producer = make_producer({**settings, "transactional.id": transactional_id})
    if _insist(partial(producer.init_transactions, ASK_S), may_wait, f"an end of {transactional_id}"):
        log.info("took over from %s", transactional_id, extra={"action": "taken_over"})


def _insist(ask: Callable[[], object], may_wait: MayWait, what: str) -> bool:
    """Ask the broker, again as long as it is not ready; tell whether it did as asked."""
    while True:
        try:
            call_with_deadline(ask, may_wait)
            return True
        except CallTimedOut:
            log.warning("no answer in time: %s", what, extra={"action": "not_taken_over"})
            return False
        except KafkaException as error:
            told = error.args[0]
            if not is_transient(told) or not may_wait():
                log.warning("no answer: %s: %s", what, told.str(), extra={"action": "not_taken_over"})
                return False
        time.sleep(RELIEF_S)
