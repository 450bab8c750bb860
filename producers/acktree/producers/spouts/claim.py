"""The claim on a spout task: an epoch that fences older owners, and a run that keeps generations apart.

Invariant: epoch, run and floors are durable in the metadata of the committed ``T.spout-<task>`` offset
before their first use; resetting the offsets of the source topic does not touch it. Damaged metadata is an
error.
"""

import binascii
import json
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    FIRST_CHECK_S,
    metadata_of,
    retry_until_ready,
    why_unanswered,
)
from acktree.core.kafka.errors import as_clear_error, clear_errors
from acktree.producers.spouts.outside_commit import commit_offsets
from acktree.wire.commit_metadata import seal, unseal
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import MAX_RUN, MAX_SLOTS, next_run

FORMAT, COMPACT = "1", "2"
"""Formats of the text: floors as JSON or, where that is too long, as one byte per slot."""
MAX_METADATA_CHARS = 4_000
"""Below 4,096, the default of a broker's offset.metadata.max.bytes."""


class DamagedClaim(AcktreeError):
    """The metadata of a result topic's committed offset is damaged or not ours."""


class OversizedClaim(AcktreeError):
    """The state of a spout task does not fit into the metadata of a commit."""


class LostClaim(AcktreeError):
    """Another process has claimed the same spout task."""


@dataclass(slots=True)
class Claim:
    """One process's claim on a spout task.

    ``floors`` is the lowest run whose results count, by slot. ``replays`` is the state of the replay commands
    on the result topic, by their offset: the run in which a command is executed and the end (exclusive) of
    the offsets that it replays, (0, 0) once all of it is done.
    ``sequence``, of a spout in Python, is greater than the numbers of all messages that it has emitted.
    ``logged``, of a spout in Spark, is the number of the last batch in its checkpoint, and the epoch of the
    driver that has seen it there; ``frontiers`` is by slot below which offset all is done, as far as known.
    """

    epoch: int
    run: int
    next_offset: int
    floors: dict[int, int] = field(default_factory=dict)
    replays: dict[int, tuple[int, int]] = field(default_factory=dict)
    sequence: int = 0
    logged: tuple[int, int] = (0, 0)
    frontiers: dict[int, int] = field(default_factory=dict)

    def metadata(self) -> str:
        """Return the ASCII text that is committed with the result position.

        Raises:
            OversizedClaim: the task has thousands of slots with different floors.

        >>> claim = Claim(2, 7, 0, {3: 5}, {80: (7, 12)}, logged=(9, 2), frontiers={3: 40})
        >>> decode_claim(claim.metadata(), 0) == claim
        True
        """
        floors, rest = sorted(self.floors.items()), [sorted(self.replays.items()), self.sequence]
        rest += [self.logged] if self.logged[0] else []
        more = [sorted(self.frontiers.items())] if self.logged[0] else []
        text = self._text(FORMAT, _json([floors, *rest, *more]))
        if len(text) > MAX_METADATA_CHARS:
            text = self._text(FORMAT, _json([floors, *rest]))
        if len(text) > MAX_METADATA_CHARS:
            by_slot = bytes(self.floors.get(slot, 0) for slot in range(max(self.floors, default=-1) + 1))
            text = self._text(COMPACT, _json(rest) + b"\0" + by_slot)
        if len(text) > MAX_METADATA_CHARS:
            raise OversizedClaim(
                f"a spout task of {len(self.floors)} source partitions, "
                f"{len(set(self.floors.values()))} runs and {len(self.replays)} replay commands needs more "
                "metadata than a commit holds: raise the spout's tasks in the topology"
            )
        return text

    def _text(self, format_tag: str, content: bytes) -> str:
        packed = binascii.b2a_base64(zlib.compress(content, 9), newline=False).decode()
        return seal(format_tag, self.epoch, self.run, packed)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode_claim(text: str, next_offset: int) -> Claim:
    """Return the claim in metadata text; raise DamagedClaim for anything else."""
    parts = unseal(text, (FORMAT, COMPACT), 4)
    claim = None if parts is None else _decode(parts, next_offset)
    if claim is None:
        raise DamagedClaim(
            f"the metadata {text!r} of a result topic's committed offset is damaged or not ours; if somebody "
            "committed it by hand, delete that offset of the group to begin with a new claim"
        )
    return claim


def _decode(parts: Sequence[str], next_offset: int) -> Claim | None:
    """Return the claim in the parts of a sealed text, None if they are anything else."""
    try:
        content = zlib.decompress(binascii.a2b_base64(parts[3]))
        if parts[0] == FORMAT:
            pairs, replays, sequence, *rest = json.loads(content)
        else:
            table, _, by_slot = content.partition(b"\0")
            pairs = ((slot, floor) for slot, floor in enumerate(by_slot) if floor)
            replays, sequence, *rest = json.loads(table)
        floors, by_offset = dict(pairs), {offset: (run, end) for offset, (run, end) in replays}
        epoch, run = int(parts[1]), int(parts[2])
        number, seen_by = rest[0] if rest else (0, 0)
        frontiers = dict(rest[1]) if len(rest) > 1 else {}
    except (ValueError, TypeError, RecursionError, zlib.error):
        return None
    said = (*floors, *floors.values(), *by_offset, *chain(*by_offset.values()), sequence, number, seen_by)
    said += (*frontiers, *frontiers.values())
    if not all(type(each) is int for each in said) or sequence < 0:
        return None
    if not all(0 <= slot < MAX_SLOTS and 0 <= floor <= MAX_RUN for slot, floor in floors.items()):
        return None
    return Claim(epoch, run, next_offset, floors, by_offset, sequence, (number, seen_by), frontiers)


def read_claim(
    consumer: Consumer, result_topic: str, bootstrap: str, timeout_s: float = BROKER_TIMEOUT_S
) -> Claim | None:
    """Return the committed claim on a spout task, None if there is none; the consumer has the spout's group.

    Raises:
        DamagedClaim: the committed metadata is not a claim.
        BrokerUnreachable, BrokerRefused: see there.
    """
    with clear_errors(bootstrap):
        (committed,) = consumer.committed([TopicPartition(result_topic, 0)], timeout=timeout_s)
        if committed.error is not None:
            raise KafkaException(committed.error)
    if committed.offset == OFFSET_INVALID:
        return None
    return decode_claim(metadata_of(committed), committed.offset)


def read_claims(consumer: Consumer, result_topics: Iterable[str], bootstrap: str) -> dict[str, Claim | None]:
    """Return the committed claims by result topic; None where there is none or where it is damaged.

    Raises:
        BrokerUnreachable, BrokerRefused: see there.
    """
    found: dict[str, Claim | None] = {}
    with clear_errors(bootstrap):
        places = [TopicPartition(topic, 0) for topic in result_topics]
        for committed in consumer.committed(places, timeout=BROKER_TIMEOUT_S):
            if committed.error is not None:
                raise KafkaException(committed.error)
            found[committed.topic] = None
            if committed.offset != OFFSET_INVALID:
                with suppress(DamagedClaim):
                    found[committed.topic] = decode_claim(metadata_of(committed), committed.offset)
    return found


def claim_run(consumer: Consumer, result_topic: str, group: str, bootstrap: str) -> Claim:
    """Claim a spout task with the next epoch and run, and return the claim once it is durable.

    The consumer has the spout's group id, but is not a member. The result position stays as it is.

    Raises:
        DamagedClaim: the committed metadata is not a claim.
        LostClaim: another process claimed the task at the same time; start again.
        GroupInUse: the group has members.
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
    """
    before = retry_until_ready(lambda: _first_claim(consumer, result_topic, bootstrap))
    if before is None:
        claim = Claim(next_epoch(0), run=1, next_offset=0)
    else:
        run = next_run(before.run)
        claim = replace(before, epoch=next_epoch(before.epoch), run=run)
    retry_until_ready(lambda: commit_claim(consumer, result_topic, claim, group, bootstrap))
    if (after := retry_until_ready(lambda: read_claim(consumer, result_topic, bootstrap))) != claim:
        raise LostClaim(
            f"{result_topic} was claimed by another process at the same time ({after}); start again"
        )
    return claim


def _first_claim(consumer: Consumer, result_topic: str, bootstrap: str) -> Claim | None:
    """Read the claim with a consumer that has not connected yet."""
    wait_s = FIRST_CHECK_S
    while True:
        try:
            return read_claim(consumer, result_topic, bootstrap, wait_s)
        except BrokerUnreachable:
            if (why := why_unanswered(consumer)) is not None:
                raise as_clear_error(why, bootstrap) from None
            if wait_s >= BROKER_TIMEOUT_S:
                raise
            wait_s = min(3 * wait_s, BROKER_TIMEOUT_S)


def next_epoch(epoch: int) -> int:
    """Return a higher epoch; 16 random bits make those of two processes that claim at once differ."""
    return (epoch >> 16) + 1 << 16 | world.random_bits(16)


def commit_claim(consumer: Consumer, result_topic: str, claim: Claim, group: str, bootstrap: str) -> None:
    """Commit a claim and its result position. Raises what ``commit_offsets`` raises."""
    place = TopicPartition(result_topic, 0, claim.next_offset, metadata=claim.metadata())
    commit_offsets(consumer, [place], group, bootstrap)
