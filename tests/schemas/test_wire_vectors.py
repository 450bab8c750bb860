"""docs/wire-vectors.json holds for us and for a reader made from docs/wire.md and the .avsc files alone."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from pydantic import ValidationError

from acktree.schemas import codec
from acktree.schemas.breaker_close import decode_breaker_close, encode_breaker_close
from acktree.schemas.control_records import Ack
from acktree.schemas.errors import MalformedRecord
from acktree.schemas.header import Anchor, decode_header, encode_header
from acktree.schemas.ids import acker_partition, consumer_edge, fnv1a64, mix, origin_of, root_id, unmix
from acktree.schemas.registry import decode_version, encode_version
from acktree.schemas.topology import BREAKER_SETTINGS

HOUSE = Path(__file__).parents[2]
VECTORS = json.loads((HOUSE / "docs" / "wire-vectors.json").read_text())
DECODERS = {
    "AckInit": codec.decode_ack_init,
    "Ack": codec.decode_ack,
    "Result": codec.decode_result,
    "Absent": codec.decode_absent,
    "AbsentInRun": codec.decode_absent,
    "FailWithRetry": codec.decode_ack,
    "ResultWithRetry": codec.decode_result,
    "FailWithTuple": codec.decode_ack,
    "ResultWithTuple": codec.decode_result,
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
    parsed = json.loads((HOUSE / "schemas" / "acktree" / "schemas" / f"{schema}.avsc").read_text())
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


@pytest.mark.parametrize("vector", VECTORS["record"], ids=lambda each: each["schema"])
def test_records_mean_the_same_to_us(vector: dict[str, Any]):
    decoded, value = DECODERS[vector["schema"]](bytes.fromhex(vector["bytes"])), vector["value"]
    for name, expected in value.items():
        if name == "stack":
            failed = decoded.fails if isinstance(decoded, Ack) else decoded.failed
            assert {each.failed_tuple.stack for each in failed} == {expected}
            continue
        mine = getattr(decoded, name)
        if isinstance(mine, np.ndarray):
            assert [readable(item.tobytes()[:8]) for item in mine] == [
                each["root"] if isinstance(each, dict) else each for each in expected
            ]
        elif isinstance(expected, list):
            assert len(mine) == len(expected)
        else:
            assert mine == expected


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda each: each["why"])
@pytest.mark.parametrize("decode", [codec.decode_ack_init, codec.decode_ack, codec.decode_result_record])
def test_an_invalid_record_is_refused_as_a_whole(vector: dict[str, str], decode: Any):
    with pytest.raises(MalformedRecord):
        decode(bytes.fromhex(vector["bytes"]))


def headers_of(vector: dict[str, Any]) -> dict[str, str | bytes | None]:
    return {} if vector["spark"] is None else {"spark": vector["spark"].encode()}


@pytest.mark.parametrize("vector", VECTORS["registry"], ids=lambda each: each["about"])
def test_a_version_of_the_registry_has_the_options_of_its_header(vector: dict[str, Any]):
    found = decode_version(vector["value"].encode(), headers_of(vector))
    tables = {**found.spouts, **found.bolts}
    assert {name: table.spark.model_dump() for name, table in tables.items()} == vector["options"]
    value, headers = encode_version(found)
    assert value.decode() == vector["value"]
    assert decode_version(value, dict(headers)) == found
    if "later release" not in vector["about"]:
        assert dict(headers) == headers_of(vector)


def test_the_value_of_a_version_is_that_of_releases_without_options():
    """They refuse a key that they do not know, and with it the whole version."""
    plain, with_options, _ = VECTORS["registry"]
    assert with_options["value"] == plain["value"]
    spout, bolt = json.loads(plain["value"])["spouts"]["lines"], json.loads(plain["value"])["bolts"]["store"]
    assert [*spout] == [
        *("topics", "emits", "tasks", "max_pending", "max_attempts", "retry_initial_s", "retry_max_s")
    ]
    assert [*bolt] == ["reads", "emits", "exactly_once"]


@pytest.mark.parametrize("options", ['{"lines":{"complete":"row"}}', '{"lines":1}', "[]", "{", "\xff"])
def test_a_version_whose_options_are_invalid_is_refused_as_a_whole(options: str):
    with pytest.raises(ValidationError):
        decode_version(VECTORS["registry"][0]["value"].encode(), {"spark": options.encode("latin-1")})


@pytest.mark.parametrize("vector", VECTORS["breaker"], ids=lambda each: each["about"])
def test_a_version_has_the_breakers_of_its_header_and_older_processes_read_its_value(vector: dict[str, Any]):
    found = decode_version(vector["value"].encode(), {"breaker": vector["header"].encode()})
    table = found.spouts["lines"]
    assert {name: getattr(table, name) for name in BREAKER_SETTINGS} == vector["settings"]
    value, headers = encode_version(found)
    assert value.decode() == vector["value"] == VECTORS["registry"][0]["value"]
    assert decode_version(value, dict(headers)) == found
    if "later release" not in vector["about"]:
        assert dict(headers) == {"breaker": vector["header"].encode()}


@pytest.mark.parametrize("settings", ['{"lines":{"max_failure_ratio":2}}', '{"lines":1}', "[]", "{"])
def test_a_version_whose_breakers_are_invalid_is_refused_as_a_whole(settings: str):
    with pytest.raises(ValidationError):
        decode_version(VECTORS["registry"][0]["value"].encode(), {"breaker": settings.encode()})


def test_a_close_of_breakers_is_read_and_anything_else_is_not():
    for each in VECTORS["breaker_close"]:
        key, value = each["key"].encode(), each["value"].encode()
        assert decode_breaker_close(key, value) == each["spout"]
        assert encode_breaker_close(each["spout"], 1) == (key, value)
        assert decode_breaker_close(key, None) is None
        assert decode_breaker_close(key, b"{") is None
        assert decode_breaker_close(b"breaker/other", value) is None
        assert decode_breaker_close(b"flow/lines", value) is None
