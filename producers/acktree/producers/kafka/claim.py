"""Claim a spout task: an epoch that tells drivers apart, and a run that keeps generations apart.

Invariant: epoch, run and floors are durable in the metadata of the committed ``T.spout-<task>`` offset
before their first use; a reset of the source topic does not touch that one. Damaged metadata is refused.
"""

import binascii
import json
import secrets
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from acktree.producers.kafka.outside_commit import commit_offsets
from acktree.schemas.clients import (
    BROKER_TIMEOUT_S,
    FIRST_CHECK_S,
    as_clear_error,
    clear_errors,
    metadata_of,
    retry_until_ready,
    why_unanswered,
)
from acktree.schemas.errors import AcktreeError, BrokerUnreachable
from acktree.schemas.ids import next_run

FORMAT, MANY = "2", "3"
"""Formats of the text: floors as JSON, and, where that is too long, as a byte for each slot."""
SEQUENCE_BYTES = 6
"""Behind the packed text, of a spout in Python: who does not know of them reads what he knows."""
MAX_METADATA_CHARS = 4_000
"""Below 4,096, a broker's offset.metadata.max.bytes by default."""


class DamagedClaim(AcktreeError):
    """The metadata of a result topic's committed offset is not ours or was damaged."""


class OversizedClaim(AcktreeError):
    """What a spout task has to keep does not fit into the metadata of a commit."""


class LostClaim(AcktreeError):
    """Another process claimed the same spout task in the same moment."""


@dataclass(slots=True)
class Claim:
    """What one process holds of a spout task.

    ``floors`` is the lowest run that counts, by slot. ``replays`` is what became of the replay commands on
    the result topic, by their offset: the run they are obeyed in and the end of what they open (exclusive),
    (0, 0) once they matter no more: all of it is done, and so are the blocks that they took a part of.
    ``sequence``, of a spout in Python, is above the numbers of all messages that it has emitted.
    """

    epoch: int
    run: int
    next_offset: int
    floors: dict[int, int] = field(default_factory=dict)
    replays: dict[int, tuple[int, int]] = field(default_factory=dict)
    sequence: int = 0

    def metadata(self) -> str:
        """Return the ASCII text that is committed beside the result position.

        Raises:
            OversizedClaim: the task has thousands of slots whose floors differ.

        >>> decode_claim(Claim(2, 7, 0, {3: 5}, {80: (7, 12)}).metadata(), 0)
        Claim(epoch=2, run=7, next_offset=0, floors={3: 5}, replays={80: (7, 12)}, sequence=0)
        """
        replays = sorted(self.replays.items())
        text = self._text(FORMAT, _json([sorted(self.floors.items()), replays]))
        if len(text) > MAX_METADATA_CHARS:
            by_slot = bytes(self.floors.get(slot, 0) for slot in range(max(self.floors, default=-1) + 1))
            text = self._text(MANY, _json(replays) + b"\0" + by_slot)
        if len(text) > MAX_METADATA_CHARS:
            raise OversizedClaim(
                f"a spout task of {len(self.floors)} source partitions, "
                f"{len(set(self.floors.values()))} runs and {len(replays)} replay commands has more "
                "to keep than a commit's metadata holds: raise the spout's tasks in the topology"
            )
        return text

    def _text(self, form: str, said: bytes) -> str:
        behind = self.sequence.to_bytes(SEQUENCE_BYTES, "big") if self.sequence else b""
        packed = binascii.b2a_base64(zlib.compress(said, 9) + behind, newline=False).decode()
        body = f"{form}|{self.epoch}|{self.run}|{packed}"
        return f"{body}|{zlib.crc32(body.encode()):08x}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode_claim(text: str, next_offset: int) -> Claim:
    """Return the claim in metadata text; raise DamagedClaim for anything else."""
    body, _, crc = text.rpartition("|")
    parts = body.split("|")
    if len(parts) != 4 or parts[0] not in (FORMAT, MANY) or crc != f"{zlib.crc32(body.encode()):08x}":
        raise DamagedClaim(
            f"the metadata {text!r} of a result topic's committed offset is not ours; if somebody committed "
            "there by hand, delete that offset of the group to begin with a fresh claim"
        )
    unpacking = zlib.decompressobj()
    said = unpacking.decompress(binascii.a2b_base64(parts[3]))
    if parts[0] == FORMAT:
        floors, replays = json.loads(said)
    else:
        table, _, by_slot = said.partition(b"\0")
        floors, replays = ((slot, floor) for slot, floor in enumerate(by_slot) if floor), json.loads(table)
    obeyed = {position: (run, end) for position, (run, end) in replays}
    sequence = int.from_bytes(unpacking.unused_data[:SEQUENCE_BYTES], "big")
    return Claim(int(parts[1]), int(parts[2]), next_offset, dict(floors), obeyed, sequence)


def read_claim(
    consumer: Consumer, result_topic: str, bootstrap: str, timeout_s: float = BROKER_TIMEOUT_S
) -> Claim | None:
    """Return what is committed for a spout task by the consumer's group, None if nothing is.

    Raises:
        DamagedClaim: what is committed is not ours. BrokerUnreachable, BrokerRefused: see there.
    """
    with clear_errors(bootstrap):
        (committed,) = consumer.committed([TopicPartition(result_topic, 0)], timeout=timeout_s)
        if committed.error is not None:
            raise KafkaException(committed.error)
    if committed.offset == OFFSET_INVALID:
        return None
    return decode_claim(metadata_of(committed), committed.offset)


def read_claims(consumer: Consumer, result_topics: Iterable[str], bootstrap: str) -> dict[str, Claim | None]:
    """Return by result topic what is committed by the consumer's group; None for nothing, and for damage.

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
    """Take the next epoch and run of a spout task and return them once they are durable.

    The consumer has the spout's group id and is no member of it. The result position is kept.

    Raises:
        DamagedClaim: what is committed is not ours.
        LostClaim: another process claimed the task at the same time; start again.
        GroupInUse: the group has members.
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
    """
    before = retry_until_ready(lambda: _first_claim(consumer, result_topic, bootstrap))
    if before is None:
        claim = Claim(next_epoch(0), run=1, next_offset=0)
    else:
        run = next_run(before.run)
        kept = before.next_offset, before.floors, before.replays
        claim = Claim(next_epoch(before.epoch), run, *kept, before.sequence)
    retry_until_ready(lambda: commit_claim(consumer, result_topic, claim, group, bootstrap))
    if (after := retry_until_ready(lambda: read_claim(consumer, result_topic, bootstrap))) != claim:
        raise LostClaim(
            f"{result_topic} was claimed by another process at the same time ({after}); start again"
        )
    return claim


def _first_claim(consumer: Consumer, result_topic: str, bootstrap: str) -> Claim | None:
    """Read the claim with a consumer to which nothing is assigned yet."""
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
    """Return a higher epoch, one that two processes claiming at once do not share: 16 bits are random."""
    return (epoch >> 16) + 1 << 16 | secrets.randbits(16)


def commit_claim(consumer: Consumer, result_topic: str, claim: Claim, group: str, bootstrap: str) -> None:
    """Commit a claim with its result position. Raises what ``commit_offsets`` raises."""
    place = TopicPartition(result_topic, 0, claim.next_offset, metadata=claim.metadata())
    commit_offsets(consumer, [place], group, bootstrap)
