"""Options of the source: the topology's, and those of a start, which come before them."""

from typing import Any

import pytest

from acktree.core.topology.file import SpoutSparkTable, Topology, parse_topology
from acktree.spark.shared.options import SourceOptions

TOPOLOGY = """
name = "t"
[spouts.lines]
topics = ["in"]
emits = ["words"]
[spouts.lines.spark]
starting_offsets = "latest"
max_offsets_per_trigger = 500
include_headers = true
fail_on_data_loss = false
transactions = false
complete = "batch"
[bolts.store]
reads = ["words"]
spark.max_offsets_per_trigger = 70
"""
OF_TOPOLOGY = {
    "starting_offsets": "latest",
    "max_offsets": 500,
    "include_headers": True,
    "fail_on_data_loss": False,
    "transactions": False,
    "complete_by_batch": True,
}
AT_START = {
    "startingOffsets": ("earliest", "starting_offsets", "earliest"),
    "maxOffsetsPerTrigger": ("9", "max_offsets", 9),
    "includeHeaders": ("false", "include_headers", False),
    "failOnDataLoss": ("true", "fail_on_data_loss", True),
    "transactions": ("true", "transactions", True),
    "complete": ("tree", "complete_by_batch", False),
}
"""By option: what a start gives, the field it is in, and what it means."""


def options(topology: Topology, **given: str) -> SourceOptions:
    role = {"spout": "lines"} if "bolt" not in given else {}
    place = {"kafka.bootstrap.servers": "x", "topology": "t", **role}
    return SourceOptions.parse({**place, **given}).within(topology)


def fields(found: SourceOptions) -> dict[str, Any]:
    return {name: getattr(found, name) for name in OF_TOPOLOGY}


def test_every_option_of_the_topology_applies_where_the_start_gives_none():
    assert {key.replace("_", "") for key in SpoutSparkTable.model_fields} == {
        option.lower() for option in AT_START
    }
    assert fields(options(parse_topology(TOPOLOGY))) == OF_TOPOLOGY
    assert options(parse_topology(TOPOLOGY), bolt="store").max_offsets == 70


@pytest.mark.parametrize("option", AT_START)
@pytest.mark.parametrize("written", [str, str.lower, str.upper])
def test_an_option_of_the_start_takes_precedence_over_the_topologys(option: str, written: Any):
    given, field, meaning = AT_START[option]
    found = options(parse_topology(TOPOLOGY), **{written(option): given})
    assert fields(found) == OF_TOPOLOGY | {field: meaning}


def test_without_a_table_the_defaults_of_the_topology_are_those_of_the_source():
    plain = parse_topology('name = "t"\n[spouts.lines]\ntopics = ["in"]\n')
    place = {"kafka.bootstrap.servers": "x", "topology": "t", "spout": "lines"}
    assert options(plain) == SourceOptions.parse(place)
    assert options(plain, spout="gone").spout == "gone"


def test_the_columns_that_spark_knows_take_precedence_over_the_topologys():
    role = {"kafka.bootstrap.servers": "x", "topology": "t", "spout": "lines"}
    found = SourceOptions.parse(role).with_headers(False).within(parse_topology(TOPOLOGY))
    assert not found.include_headers
