"""docs/wire-vectors.json holds for us and for a reader made from docs/wire.md and the .avsc files alone."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from pydantic import ValidationError
from pyroaring import BitMap64

from acktree.core.topology.breaker_close import decode_breaker_close, encode_breaker_close
from acktree.core.topology.registry import Published
from acktree.wire import codec, state_records
from acktree.wire.control_records import Cause, Fail, FailedTuple, Failure, Span
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import Anchor, decode_header, encode_header
from acktree.wire.ids import acker_partition, consumer_edge, fnv1a64, mix, origin_of, root_id, unmix

HOUSE = Path(__file__).parents[2]
VECTORS = json.loads((HOUSE / "docs" / "wire-vectors.json").read_text())
CODECS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "AckInit": (codec.decode_ack_init, codec.encode_ack_init),
    "Ack": (codec.decode_ack, codec.encode_ack),
    "Result": (codec.decode_result, codec.encode_result),
    "Absent": (codec.decode_absent, codec.encode_absent),
    "ReplayCommand": (codec.decode_replay_command, codec.encode_replay_command),
}


def number(text: str) -> int:
    return int(text, 16)


@pytest.mark.parametrize("vector", VECTORS["mix"], ids=lambda each: each["x"])
def test_mix(vector: dict[str, str]):
    x, mixed = number(vector["x"]), number(vector["mix"])
    assert mix(x) == mixed
    assert unmix(mixed) == x


def test_hashes_of_names():
    assert all(fnv1a64(each["text"]) == number(each["fnv1a64"]) for each in VECTORS["fnv1a64"])


@pytest.mark.parametrize("vector", VECTORS["root_id"], ids=lambda each: each["root"])
def test_root_ids_and_their_inverse(vector: dict[str, Any]):
    parts = vector["slot"], vector["generation"], vector["offset"]
    assert root_id(*parts) == number(vector["root"])
    assert tuple(origin_of(number(vector["root"]))) == parts


def test_consumer_edges():
    for each in VECTORS["consumer_edge"]:
        assert consumer_edge(number(each["edge"]), fnv1a64(each["bolt"])) == number(each["consumer_edge"])


def test_control_partitions():
    for each in VECTORS["control_partition"]:
        assert acker_partition(number(each["root"]), each["ackers"]) == each["partition"]


@pytest.mark.parametrize("vector", VECTORS["header"], ids=lambda each: each["bytes"])
def test_headers(vector: dict[str, Any]):
    anchors = [
        Anchor(each["version"], number(each["root"]), number(each["edge"])) for each in vector["anchors"]
    ]
    assert encode_header(vector["version"], anchors).hex() == vector["bytes"]
    decoded = decode_header(bytes.fromhex(vector["bytes"]))
    assert (decoded.version, list(decoded.anchors)) == (vector["version"], anchors)


def read_as_a_stranger(schema: str, data: bytes) -> Any:
    """Decode a record with the .avsc file and any Avro library."""
    parsed = json.loads((HOUSE / "schemas" / "acktree" / "wire" / f"{schema}.avsc").read_text())
    return fastavro.schemaless_reader(io.BytesIO(data[10:]), fastavro.parse_schema(parsed), None)


def readable(value: Any) -> Any:
    """Return a decoded value as the vectors write it: ids as hexadecimal numbers."""
    if isinstance(value, bytes):
        return f"{int.from_bytes(value, 'little'):#018x}"
    if isinstance(value, dict):
        return {key: readable(each) for key, each in value.items()}
    return [readable(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("vector", VECTORS["record"], ids=lambda each: each["schema"])
def test_records_mean_the_same_to_an_avro_library(vector: dict[str, Any]):
    assert readable(read_as_a_stranger(vector["schema"], bytes.fromhex(vector["bytes"]))) == vector["value"]


def as_written(value: Any) -> Any:
    """Return a decoded value of ours as the vectors write it: ids and enumerations as text."""
    if isinstance(value, np.ndarray):
        names = value.dtype.names
        return [
            readable({name: each[name].tobytes() for name in names} if names else each.tobytes())
            for each in value
        ]
    if isinstance(value, Fail | Failure):
        written = {name: as_written(each) for name, each in value._asdict().items()}
        return {**written, "root": f"{value.root:#018x}"}
    if isinstance(value, FailedTuple | Span):
        return value._asdict()
    if isinstance(value, Cause):
        return value.name
    return [as_written(each) for each in value] if isinstance(value, tuple) else value


def as_ours(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value of a vector with the stack trace where we have it, in the tuples that failed."""
    ours = {name: each for name, each in value.items() if name != "stack"}
    for name in {"fails", "failed"} & ours.keys():
        ours[name] = [
            {key: each[key] for key in each.keys() - {"tuple"}}
            | {"failed_tuple": each["tuple"] and {**each["tuple"], "stack": value["stack"]}}
            for each in value[name]
        ]
    return ours


@pytest.mark.parametrize("vector", VECTORS["record"], ids=lambda each: each["schema"])
def test_records_mean_the_same_to_acktree(vector: dict[str, Any]):
    decode, encode = CODECS[vector["schema"]]
    decoded = decode(bytes.fromhex(vector["bytes"]))
    ours = {name: as_written(getattr(decoded, name)) for name in decoded.__slots__}
    assert ours == as_ours(vector["value"])
    assert encode(decoded).hex() == vector["bytes"]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda each: each["why"])
@pytest.mark.parametrize("decode", [codec.decode_ack_init, codec.decode_ack, codec.decode_result_record])
def test_an_invalid_record_is_refused_as_a_whole(vector: dict[str, str], decode: Any):
    with pytest.raises(MalformedRecord):
        decode(bytes.fromhex(vector["bytes"]))


@pytest.mark.parametrize("vector", VECTORS["registry"], ids=lambda each: each["about"])
def test_a_version_of_the_registry_is_one_json_object(vector: dict[str, Any]):
    found = Published.model_validate_json(vector["value"])
    assert (str(found.version), found.model_dump_json()) == (vector["key"], vector["value"])
    assert found.model_dump(mode="json") == json.loads(vector["value"])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"spark": spark} for spark in ({"complete": "row"}, {"unknown": 1}, 1)),
        *({"max_failure_ratio": ratio} for ratio in (2, "half")),
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_version_with_an_invalid_or_unknown_setting_is_refused_as_a_whole(wrong: dict[str, Any]):
    version = json.loads(VECTORS["registry"][0]["value"])
    version["spouts"]["lines"] |= wrong
    with pytest.raises(ValidationError):
        Published.model_validate_json(json.dumps(version))


def test_a_close_of_breakers_is_read_and_anything_else_is_not():
    for each in VECTORS["breaker_close"]:
        key, value = each["key"].encode(), each["value"].encode()
        assert decode_breaker_close(key, value) == each["spout"]
        assert encode_breaker_close(each["spout"], 1) == (key, value)
        assert decode_breaker_close(key, None) is None
        assert decode_breaker_close(key, b"{") is None
        assert decode_breaker_close(b"breaker/other", value) is None
        assert decode_breaker_close(b"flow/lines", value) is None


STATES: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "SpoutState": (state_records.decode_spout_state, state_records.encode_spout_state),
    "SlotState": (state_records.decode_slot_state, state_records.encode_slot_state),
    "StateStart": (state_records.decode_state_start, state_records.encode_state_start),
    "TaskState": (state_records.decode_task_state, state_records.encode_task_state),
}


def as_stated(value: Any) -> Any:
    """Return a value of a state record as the vectors write it."""
    if hasattr(value, "_asdict"):
        return {name: as_stated(each) for name, each in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [as_stated(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


@pytest.mark.parametrize("vector", VECTORS["state"], ids=lambda each: each["key"])
def test_states_mean_the_same_to_acktree_and_to_an_avro_library(vector: dict[str, Any]):
    decode, encode = STATES[vector["schema"]]
    data = bytes.fromhex(vector["bytes"])
    assert as_stated(decode(data)) | {"version": 1} == vector["value"]
    assert encode(decode(data)) == data
    assert in_hex(read_as_a_stranger(vector["schema"], data)) == vector["value"]
    if "offsets" in vector:
        assert list(BitMap64.deserialize(bytes.fromhex(vector["value"]["done"]))) == vector["offsets"]
        assert state_records.decode_slot_key(vector["key"].encode()).encode() == vector["key"].encode()


def in_hex(value: Any) -> Any:
    """Return a value of an Avro library as the vectors write it."""
    if isinstance(value, dict):
        return {name: in_hex(each) for name, each in value.items()}
    if isinstance(value, list):
        return [in_hex(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


@pytest.mark.parametrize("vector", VECTORS["refused_state"], ids=lambda each: each["why"])
@pytest.mark.parametrize("schema", STATES)
def test_an_invalid_state_is_refused_as_a_whole(vector: dict[str, str], schema: str):
    with pytest.raises(MalformedRecord, match=vector.get("says")):
        STATES[schema][0](bytes.fromhex(vector["bytes"]))


@pytest.mark.parametrize("schema", STATES)
def test_a_state_with_a_byte_missing_or_added_is_refused(schema: str):
    decode, _ = STATES[schema]
    for data in (bytes.fromhex(each["bytes"]) for each in VECTORS["state"] if each["schema"] == schema):
        for end in range(len(data)):
            with pytest.raises(MalformedRecord):
                decode(data[:end])
        with pytest.raises(MalformedRecord):
            decode(data + b"\0")


@pytest.mark.parametrize(
    "key", [b"", b"spout", b"a/b", b"a/x/id", b"a/-1/id", b"/0/id", b"a/01/id", b"\xff/0/id"]
)
def test_a_malformed_slot_key_is_refused(key: bytes):
    with pytest.raises(MalformedRecord):
        state_records.decode_slot_key(key)


@pytest.mark.parametrize("vector", VECTORS["seal"], ids=lambda each: each["metadata"])
def test_the_seal_of_a_committed_offset(vector: dict[str, Any]):
    seal = state_records.OffsetSeal(vector["term"], vector["topic_id"])
    assert seal.text(vector["offset"]) == vector["metadata"]
    assert state_records.seal_in(vector["metadata"], vector["offset"]) == seal


@pytest.mark.parametrize("vector", VECTORS["no_mark"], ids=lambda each: each["why"])
def test_an_offset_set_by_another_client_has_no_seal(vector: dict[str, Any]):
    assert state_records.seal_in(vector["metadata"], vector["offset"]) is None
