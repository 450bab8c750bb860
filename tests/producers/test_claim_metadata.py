"""A claim read back is the claim written, or it is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.producers.claim_metadata import MAX_CHARACTERS, decode_claim, encode_claim
from acktree.producers.errors import ClaimTooLarge, MalformedClaim

RUNS = st.integers(1, 255)
EPOCHS = st.integers(1, 10**15)
FLOORS = st.dictionaries(st.integers(0, 4095), RUNS, max_size=40)


@given(EPOCHS, RUNS, FLOORS)
def test_decoding_gives_back_what_was_encoded(epoch, run, floors):
    text = encode_claim(epoch, run, floors)
    assert decode_claim(text) == (epoch, run, floors)
    assert text.isascii()
    assert len(text) <= MAX_CHARACTERS


@given(EPOCHS, RUNS, FLOORS, st.data())
def test_one_flipped_character_is_refused(epoch, run, floors, data):
    text = encode_claim(epoch, run, floors)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda c: c != text[place]))
    with pytest.raises(MalformedClaim):
        decode_claim(text[:place] + other + text[place + 1 :])


@given(st.text(max_size=80))
def test_any_other_text_is_refused(text):
    with pytest.raises(MalformedClaim):
        decode_claim(text)


@pytest.mark.parametrize(
    "body", ["1|0|1|", "1|1|0|", "1|1|256|", "1|1|1|256:0", "1|1|1|5:4096", "1|1|1|5:0-99999999", "1|1|1|5"]
)
def test_values_out_of_range_are_refused_even_with_a_right_checksum(body):
    from zlib import crc32

    with pytest.raises(MalformedClaim):
        decode_claim(f"{body}|{crc32(body.encode()):08x}")


def test_four_thousand_slots_of_one_floor_take_a_few_characters():
    assert len(encode_claim(1, 1, dict.fromkeys(range(4096), 200))) < 40


def test_floors_that_do_not_fit_a_commit_are_refused():
    with pytest.raises(ClaimTooLarge, match="more tasks"):
        encode_claim(1, 1, {slot: slot % 200 + 1 for slot in range(4096)})
