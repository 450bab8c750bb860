"""A claim read back is the claim written, or it is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.producers.claim import Claim, DamagedClaim, decode_claim

CLAIMS = st.builds(
    Claim,
    epoch=st.integers(1, 10**15),
    run=st.integers(1, 255),
    next_offset=st.integers(0, 2**40),
    floors=st.dictionaries(st.integers(0, 4095), st.integers(1, 255), max_size=40),
)


@given(CLAIMS)
def test_decoding_gives_back_what_was_claimed(claim):
    text = claim.metadata()
    assert decode_claim(text, claim.next_offset) == claim
    assert text.isascii()


@given(CLAIMS, st.data())
def test_one_flipped_character_is_refused(claim, data):
    text = claim.metadata()
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda c: c != text[place]))
    with pytest.raises(DamagedClaim):
        decode_claim(text[:place] + other + text[place + 1 :], 0)


@given(st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_other_text_is_refused(text):
    with pytest.raises(DamagedClaim):
        decode_claim(text, 0)
