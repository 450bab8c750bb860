"""Fences dead workers: their open transactions hold back the readers of the topics they wrote to.

Invariant: only an owner that a commit names is fenced, so never a worker that left its partitions cleanly. A
live one loses only its open transaction, which it could not commit anyway, as it has lost the partition. If
the broker does not answer, nothing is assumed: it aborts such transactions itself when they time out.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_producer, metadata_of
from acktree.core.kafka.errors import is_transient
from acktree.core.kafka.group_offsets import read_committed
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.producers.collecting.arithmetic.done_above import decode_owner
from acktree.producers.kafka.deadline_call import CHECK_INTERVAL_S, CallTimedOut, call_with_deadline

REQUEST_TIMEOUT_S = 5.0
"""How long a request waits for the broker before it is retried."""

TRANSACTION_TIMEOUT_MS = 10_000
"""For how long a dead worker's open transaction may hold readers back."""
FENCING_TIMEOUT_S = 10.0
"""How long fencing all previous owners may take."""
DELIVERY_SETTINGS = ("message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms")
"""User settings that a producer of few small records does not need, and that may contradict its own."""

log = logging.getLogger("acktree.bolt")

MayWait = Callable[[], bool]


def find_owners(
    bootstrap: str, user: Settings, group: str, places: Sequence[tuple[str, int]], may_wait: MayWait
) -> set[bytes]:
    """Return the owners that the last commits of these partitions name, pending transactional ones or not."""
    if not places:
        return set()
    owners: set[bytes] = set()
    wanted = [TopicPartition(*place) for place in places]

    def request() -> None:
        found = read_committed(bootstrap, user, group, wanted, stable=False, timeout_s=REQUEST_TIMEOUT_S)
        for committed in found:
            if committed.error is None and committed.offset >= 0:
                owners.add(decode_owner(metadata_of(committed), committed.offset))

    _retry_request(request, may_wait, f"request for the owners of the partitions of {group}")
    return owners - {b""}


def end_transactions(
    bootstrap: str,
    user: Settings,
    group: str,
    places: Sequence[tuple[str, int]],
    may_wait: MayWait,
    own: bytes = b"",
) -> None:
    """End the open transactions of workers that owned these partitions and did not leave cleanly.

    ``own`` is this worker, which is never fenced. A live worker that has lost the partitions resumes from the
    committed offsets. If the broker does not answer within FENCING_TIMEOUT_S, it aborts the transactions
    itself when they time out. Raises what ``may_wait`` raises.
    """
    until_s = world.monotonic_s() + FENCING_TIMEOUT_S

    def has_time() -> bool:
        return may_wait() and world.monotonic_s() < until_s

    settings = fencing_settings(bootstrap, user, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
    for owner in sorted(find_owners(bootstrap, user, group, places, has_time) - {own}):
        fence(settings, transactional_id_of(group, owner), has_time)


def fencing_settings(bootstrap: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a producer that fences; ``ours`` as for ``producer_settings``."""
    kept = {name: value for name, value in user.items() if name not in DELIVERY_SETTINGS}
    return producer_settings(bootstrap, kept, **ours)


def transactional_id_of(group: str, owner: bytes) -> str:
    """Return the transactional id of the worker that commits name by these ``owner`` bytes."""
    return f"{group}-{owner.hex()}"


def fence(settings: Mapping[str, Any], transactional_id: str, may_wait: MayWait) -> None:
    """Fence a transactional id: abort its open transaction and reject its old producer from now on."""
    producer = make_producer({**settings, "transactional.id": transactional_id})
    init_transactions = partial(producer.init_transactions, REQUEST_TIMEOUT_S)
    if _retry_request(init_transactions, may_wait, f"request to fence {transactional_id}"):
        log.info("fenced %s", transactional_id, extra={"action": "taken_over"})


def _retry_request(request: Callable[[], object], may_wait: MayWait, what: str) -> bool:
    """Make a request, and retry it while its error is transient; return whether it succeeded."""
    while True:
        try:
            call_with_deadline(request, may_wait)
            return True
        except CallTimedOut:
            log.warning("no answer in time: %s", what, extra={"action": "not_taken_over"})
            return False
        except KafkaException as error:
            kafka_error = error.args[0]
            if not is_transient(kafka_error) or not may_wait():
                log.warning("no answer: %s: %s", what, kafka_error.str(), extra={"action": "not_taken_over"})
                return False
        world.sleep(CHECK_INTERVAL_S)
