"""What fuzzing has found of interest is handled: every kept input of every target."""

import pytest

from fuzz import corpus
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_kept_input_is_handled(name: str):
    inputs = corpus.read(name)
    assert inputs
    for data in inputs:
        TARGETS[name](data)


def test_an_input_that_reaches_nothing_new_is_not_added():
    kept = corpus.read("header")
    assert corpus.grown(TARGETS["header"], kept, kept) == kept
    assert corpus.grown(TARGETS["header"], kept[:1], kept) != kept[:1]
