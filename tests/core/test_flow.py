"""Flow records of the registry topic: the newest counts, and nothing else of the topic is taken for one."""

import json

import pytest

from acktree.core.topology.flow import Flow, SetFlow, decode_flow, encode_flow


@pytest.mark.parametrize("flow", list(Flow))
def test_a_flow_record_is_decoded_as_it_was_encoded(flow: Flow):
    key, value = encode_flow("lines", flow, 17)
    assert decode_flow(key, value, 5) == ("lines", SetFlow(flow, 5, 17))


def test_a_key_that_a_later_version_adds_is_ignored():
    key, value = encode_flow("lines", Flow.PAUSED, 17)
    later = json.dumps({**json.loads(value), "why": "a deploy"}).encode()
    assert decode_flow(key, later, 5) == ("lines", SetFlow(Flow.PAUSED, 5, 17))


def test_a_tombstone_clears_the_flow():
    assert decode_flow(b"flow/lines", None, 7) == ("lines", SetFlow(Flow.RUNNING, 7, 0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"1", b"{}"),
        (b"flow/lines", b""),
        (b"flow/lines", b"null"),
        (b"flow/lines", b'{"format":2,"spout":"lines","flow":"paused","time_ms":1}'),
        (b"flow/lines", b'{"format":1,"spout":"lines","flow":"asleep","time_ms":1}'),
        (b"flow/lines", b'{"format":1,"spout":"words","flow":"paused","time_ms":1}'),
        (b"flow/lines", b'{"format":1,"spout":"lines","flow":"paused","time_ms":"1"}'),
        (b"flow/lines", b"[" * 100_000),
        (b"\xff", b"\xff"),
    ],
)
def test_any_other_record_is_not_a_flow_record(key: bytes, value: bytes):
    assert decode_flow(key, value, 0) is None
