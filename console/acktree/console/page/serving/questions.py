"""Parses and checks the parameters of a page request."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from acktree.console.view.records.dead_letter_filter import DeadLetterFilter
from acktree.console.view.records.search import TraceTarget
from acktree.console.view.records.trace import UnknownRecord, target_of_record, target_of_root
from acktree.core.durations import parse_duration_s
from acktree.core.topology.registry import Published
from acktree.wire.errors import AcktreeError

ASKED = ("topic", "partition", "offset", "root")
FILTER = tuple(field.name for field in fields(DeadLetterFilter))
TEXTS = ("reason", "contains", "spout", "task", "key")
MAX_SHOWN = 40
HIGHEST_OFFSET = (1 << 63) - 1


class BadQuery(AcktreeError):
    """A page was requested with an invalid parameter."""


def asked_of(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return what the trace page is asked for, as text."""
    return {name: parameters.get(name, "").strip() for name in ASKED}


def parse_target(topology: Published, asked: Mapping[str, str]) -> TraceTarget:
    """Return what to trace. Raises UnknownRecord, BadQuery."""
    if asked["root"]:
        digits = asked["root"].lower().removeprefix("0x")
        if len(digits) > 16 or not digits or not set(digits) <= set("0123456789abcdef"):
            raise BadQuery(f"{asked['root']!r} is not a root id: up to 16 hexadecimal digits")
        return target_of_root(topology, int(digits, 16))
    partition, offset = (whole_number(asked[name], name) for name in ("partition", "offset"))
    if not asked["topic"]:
        raise UnknownRecord("no topic was named: give topic, partition and offset, or a root id")
    return target_of_record(topology, asked["topic"], partition, offset)


def asked_filter(parameters: Mapping[str, str]) -> DeadLetterFilter:
    """Return which dead letters a page is asked for; a reason and a key are taken as they are, with blanks.

    Raises:
        BadQuery: a time is not a whole number of milliseconds since 1970.
    """
    asked = {name: parameters.get(name, "") for name in FILTER}
    texts = {name: asked[name] if name in ("reason", "key") else asked[name].strip() for name in TEXTS}
    times = {name: whole_number(asked[name] or "0", name) for name in ("since_ms", "until_ms")}
    return replace(DeadLetterFilter(**cast(Any, texts)), **cast(Any, times))


def refuse_key(wanted: DeadLetterFilter, payloads: bool) -> None:
    """Raise BadQuery where a filter asks for a key, and the page shows none."""
    if wanted.key and not payloads:
        raise BadQuery("keys are payloads, and this page is served with --no-payloads")


def whole_number(text: str, name: str, limit: int = HIGHEST_OFFSET) -> int:
    """Return a number from 0. Raises BadQuery."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > limit:
        shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
        raise BadQuery(f"{name}={shown!r} must be a whole number from 0 to {limit}")
    return int(text)


def parse_age(text: str) -> float:
    """Return a duration in seconds, 0 where none is given. Raises BadQuery."""
    try:
        return parse_duration_s(text) if text else 0.0
    except ValueError as error:
        raise BadQuery(str(error)) from error


def parse_limit(text: str, limit: int) -> int:
    """Return how many rows are wanted, 100 where nothing is said. Raises BadQuery."""
    return max(1, whole_number(text, "limit", limit)) if text else 100
