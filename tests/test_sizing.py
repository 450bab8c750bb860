"""The formulas of docs/sizing.md count the bytes that the codecs write."""

import re
from pathlib import Path

import numpy as np
import pytest

import sizing_formulas as formulas
from acktree.wire.codec import encode_ack, encode_ack_init, encode_result
from acktree.wire.control_records import ENTRY, Ack, AckInit, Result
from acktree.wire.header import HEADER, Anchor, encode_header
from sizing_formulas import LEAST, MOST, Load, predict

EXAMPLE = Load(50_000, 10, 500, 100, 0.2, ackers=2, sources=24, partitions=150, workers=150, tasks=12)
PAGE = (Path(__file__).parents[1] / "docs" / "sizing.md").read_text("utf-8")
TASK = "price@pc:12345-a1b2"


@pytest.mark.parametrize("entries", [1, 60])
def test_control_records_have_the_bytes_of_the_formulas(entries: int):
    rows = np.zeros(entries, ENTRY)
    ids = np.zeros(entries, np.uint64)
    none = np.empty(0, np.uint64)
    assert len(encode_ack_init(AckInit(0, 1, rows))) == formulas.INIT + formulas.INIT_ENTRY * entries
    assert len(encode_result(Result(0, ids))) == formulas.RESULT + formulas.RESULT_ENTRY * entries
    ack = encode_ack(Ack(TASK, 1, rows, (), none))
    assert len(ack) == formulas.ACK + formulas.ACK_ENTRY * entries


def test_the_tuple_header_has_the_bytes_of_the_formulas():
    value = encode_header(1, (Anchor(1, 4, 5),))
    lengths = 2  # one byte each before the name and the value
    assert lengths + len(HEADER) + len(value) == formulas.HEADER


@pytest.mark.parametrize(
    ("row", "figure"), [("items", "tuples"), ("inits", "inits"), ("acks", "acks"), ("results", "results")]
)
def test_the_example_has_the_figures_of_the_formulas(row: str, figure: str):
    written = re.findall(rf"^\| {row} \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    expected = [f"{predict(EXAMPLE, of)[f'bytes, {figure}'] / 1e6:.1f}" for of in (LEAST, MOST)]
    assert written == [tuple(expected)]


def test_no_minimum_exceeds_its_maximum():
    least, most = predict(EXAMPLE, LEAST), predict(EXAMPLE, MOST)
    assert all(least[name] <= most[name] for name in most)
