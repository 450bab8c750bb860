"""Span ids are what docs/wire.md says, for a reader made from that page alone."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from acktree.wire.trace_context import context_of, parse_context, span_of_emission, span_of_execution

NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def by_the_page(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


@given(NAME, NAME, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_the_id_of_an_execution_follows_from_its_input(bolt, topic, partition, offset):
    wanted = by_the_page("execution", bolt, topic, str(partition), str(offset))
    assert span_of_execution(bolt, topic, partition, offset) == wanted


@given(st.integers(0, 2**64 - 1))
def test_the_id_of_an_emission_follows_from_its_root(root):
    assert span_of_emission(root) == by_the_page("emission", f"{root:016x}")


@given(st.one_of(st.none(), st.binary(max_size=80), st.text(max_size=80)), st.one_of(st.none(), st.binary()))
def test_no_bytes_from_outside_raise(parent, state):
    for found in (parse_context(parent, state), context_of([("traceparent", parent), ("tracestate", state)])):
        assert found is None or len(found.child_of("1" * 16)) == 55
