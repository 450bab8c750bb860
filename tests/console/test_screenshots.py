"""The pictures of the docs: all shown, small, and true to what Chromium drew."""

import importlib.util
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 150_000


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


small_png = load("small_png")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(lines, width, height, colour=2):
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    packed = zlib.compress(lines)
    parts = (
        chunk(b"IHDR", head) + chunk(b"IDAT", packed[:7]) + chunk(b"IDAT", packed[7:]) + chunk(b"IEND", b"")
    )
    return small_png.SIGNATURE + parts


def filtered(pixels, kind):
    """Return rows of pixels as PNG's filter of that kind writes them."""
    height, width, channels = pixels.shape
    padded = np.zeros((height + 1, width + 1, channels), int)
    padded[1:, 1:] = pixels
    left, up, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guess = left + up - corner
    near = [np.abs(guess - each) for each in (left, up, corner)]
    paeth = np.where(
        (near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], up, corner)
    )
    guesses = (0 * left, left, up, (left + up) // 2, paeth)
    rows = ((pixels - guesses[kind]) % 256).astype(np.uint8).reshape(height, -1)
    return np.hstack([np.full((height, 1), kind, np.uint8), rows]).tobytes()


def pixels_of(data):
    """Return the pixels of a PNG with a palette."""
    chunks = dict(re.findall(rb"(PLTE|IDAT)(.*?)(?=.{8}(?:IDAT|IEND))", data, re.DOTALL))
    width, height = struct.unpack(">II", data[16:24])
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    lines = np.frombuffer(zlib.decompressobj().decompress(chunks[b"IDAT"]), np.uint8)
    return palette[lines.reshape(height, width + 1)[:, 1:]]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("channels", [3, 4])
def test_a_picture_of_few_colours_stays_as_it_is(kind, channels):
    drawn = np.random.default_rng(kind).integers(0, 4, (9, 13, channels)) * 80
    small = small_png.small_png(png(filtered(drawn, kind), 13, 9, {3: 2, 4: 6}[channels]))
    assert (pixels_of(small) == drawn[:, :, :3]).all()


def test_a_rare_colour_becomes_the_nearest_of_the_common_ones():
    drawn = np.zeros((2, 300, 3), int)
    drawn[0, :, 0] = drawn[1, :, 0] = np.arange(300) % 256
    drawn[0, 0] = (10, 1, 0)
    small = pixels_of(small_png.small_png(png(filtered(drawn, 0), 300, 2)))
    assert small[0, 0].tolist() == [10, 0, 0]


def test_every_picture_is_shown_and_small():
    shown = set(re.findall(r"\(images/([a-z-]+\.png)\)", (DOCS / "operate.md").read_text()))
    files = {file.name: file.stat().st_size for file in (DOCS / "images").glob("*.png")}
    assert shown == files.keys()
    assert {name: size for name, size in files.items() if size >= MAX_BYTES} == {}


def test_the_script_makes_exactly_these_pictures(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    text = (DOCS / "screenshots.py").read_text()
    made = set(re.findall(r'^ +"([a-z-]+)": \("[a-z-]+", \d+, \d+, "[01]"\)', text, re.MULTILINE))
    assert {f"{name}.png" for name in made} == {file.name for file in (DOCS / "images").glob("*.png")}
    assert callable(load("screenshots").main)
