"""A claim that is read back equals the one that was written, or is rejected."""

import binascii
import zlib
from hashlib import sha256

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import consumer_settings
from acktree.producers.spouts.claim import (
    MAX_METADATA_CHARS,
    Claim,
    DamagedClaim,
    OversizedClaim,
    claim_run,
    decode_claim,
)
from acktree.producers.spouts.outside_commit import GroupInUse
from acktree.wire.commit_metadata import seal
from acktree.wire.ids import MAX_RUN, MAX_SLOTS
from producers.cluster import WorkerCluster, until

pytestmark = pytest.mark.simulated

CLAIMS = st.builds(
    Claim,
    epoch=st.integers(1, 10**15),
    run=st.integers(1, 255),
    next_offset=st.integers(0, 2**40),
    floors=st.dictionaries(st.integers(0, 4095), st.integers(1, 255), max_size=40),
    replays=st.dictionaries(
        st.integers(0, 2**40), st.tuples(st.integers(0, 255), st.integers(0, 2**40)), max_size=10
    ),
    sequence=st.integers(0, 2**40),
)


@given(CLAIMS)
def test_a_decoded_claim_equals_the_encoded_one(claim):
    text = claim.metadata()
    assert decode_claim(text, claim.next_offset) == claim
    assert text.isascii()


@given(st.integers(1, 255), st.integers(1, 12), st.integers(1, 8))
def test_a_claim_of_thousands_of_slots_fits_into_the_metadata_of_a_commit(floor, step, tasks):
    """A task's slots, interleaved with those of others; a few partitions were rewound."""
    floors = dict.fromkeys(range(0, MAX_SLOTS, tasks), floor)
    floors |= {slot: slot % MAX_RUN + 1 for slot in list(floors)[:: 100 * step]}
    claim = Claim(2**40, 7, 5, floors, dict.fromkeys(range(20), (7, 10**9)))
    text = claim.metadata()
    assert len(text) <= MAX_METADATA_CHARS
    assert decode_claim(text, 5) == claim


def test_a_claim_too_large_for_the_metadata_is_an_error_that_says_what_to_do():
    floors = {slot: slot * slot % MAX_RUN + 1 for slot in range(MAX_SLOTS)}
    floors |= {
        slot: int.from_bytes(sha256(bytes([slot % 251, slot // 251])).digest()[:1]) or 1 for slot in floors
    }
    with pytest.raises(OversizedClaim, match=r"4096 source partitions.*raise the spout's tasks"):
        Claim(1, 1, 0, floors).metadata()


def test_the_format_of_a_small_claim_does_not_change():
    text = "1|65537|7|eNqLjo421DGKjdWJjrYw0Im20DEEcmJ1LGMBWa4GzA==|dd428af9"
    claim = decode_claim(text, 3)
    assert claim == Claim(65537, 7, 3, {1: 2}, {80: (8, 12)}, 9)
    assert claim.metadata() == text


@given(CLAIMS, st.data())
def test_one_flipped_character_is_refused(claim, data):
    text = claim.metadata()
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda c: c != text[place]))
    with pytest.raises(DamagedClaim):
        decode_claim(text[:place] + other + text[place + 1 :], 0)


def sealed(content: bytes, format_tag: str = "1", epoch: object = 1) -> str:
    return seal(format_tag, epoch, 1, binascii.b2a_base64(zlib.compress(content), newline=False).decode())


@pytest.mark.parametrize(
    "text",
    [
        seal("1", 1, 1, "no base64"),
        seal("1", 1, 1, "AAAA"),
        sealed(b"no JSON"),
        sealed(b"[" * 9_000),
        sealed(b"[[],[],0]", epoch="x"),
        sealed(b"[[[3,5]],7,0]"),
        sealed(b'[[["3",5]],[],0]'),
        sealed(b"[[[3,256]],[],0]"),
        sealed(b"[[[4096,1]],[],0]"),
        sealed(b"[[],[]]"),
        sealed(b"[[],[],-1]"),
        sealed(b"[[],[],true]"),
        sealed(b"[[[80,[7,1.5]]],0]\0", "2"),
    ],
)
def test_text_with_a_true_checksum_that_holds_no_claim_is_refused(text):
    with pytest.raises(DamagedClaim):
        decode_claim(text, 0)


@given(st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_other_text_is_refused(text):
    with pytest.raises(DamagedClaim):
        decode_claim(text, 0)


@pytest.mark.real
def test_a_group_with_a_member_cannot_be_claimed_and_the_error_names_it(cluster: WorkerCluster):
    cluster.apply(one=(["a"], []))
    group, topic = f"{cluster.name}.s", cluster.topic("spout-0")
    stranger = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    stranger.subscribe([cluster.topic("a")])
    until(lambda: stranger.poll(0.1) is not None or stranger.assignment(), "the stranger is a member")
    ours = make_consumer(consumer_settings(cluster.bootstrap, group, {}))
    with pytest.raises(GroupInUse, match=f"member of group {group}.*stop it"):
        claim_run(ours, topic, group, cluster.bootstrap)
    stranger.close()
    assert claim_run(ours, topic, group, cluster.bootstrap).run == 1


def test_claiming_without_a_broker_names_its_address(monkeypatch):
    monkeypatch.setattr("acktree.producers.spouts.claim.BROKER_TIMEOUT_S", 0.2)
    ours = make_consumer(consumer_settings("127.0.0.1:1", "g", {}))
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        claim_run(ours, "t", "g", "127.0.0.1:1")
    ours.close()
