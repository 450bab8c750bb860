"""What of a version is in headers of its record, not in its JSON, of which older processes know every key.

Invariant: a process of a release that does not know a setting reads the version all the same, without it. A
known setting whose value is none makes the whole version unreadable.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter

from acktree.schemas.topology import BREAKER_SETTINGS, BoltTable, SpoutTable, Topology

OPTIONS_HEADER = "spark"
"""Options of the Spark source that are not the defaults, JSON by component."""
BREAKER_HEADER = "breaker"
"""Settings of breakers that are not the defaults, JSON by spout."""
NOT_IN_THE_VALUE = {
    "spouts": {"__all__": {"spark", *BREAKER_SETTINGS}},
    "bolts": {"__all__": {"spark"}},
}

_SETTINGS = TypeAdapter(dict[str, dict[str, Any]])
Table = TypeVar("Table", SpoutTable, BoltTable)
Version = TypeVar("Version", bound=Topology)
Headers = list[tuple[str, str | bytes | None]]


def headers_of(published: Topology) -> Headers:
    """Return the headers of a version's record; those that would be empty are left out."""
    tables: dict[str, SpoutTable | BoltTable] = {**published.spouts, **published.bolts}
    options = {name: table.spark.model_dump(exclude_defaults=True) for name, table in tables.items()}
    breakers = {name: table.breaker for name, table in published.spouts.items()}
    headers: Headers = []
    for header, settings in ((OPTIONS_HEADER, options), (BREAKER_HEADER, breakers)):
        if given := {name: found for name, found in settings.items() if found}:
            headers.append((header, _SETTINGS.dump_json(given)))
    return headers


def with_headers(published: Version, headers: Mapping[str, str | bytes | None]) -> Version:
    """Return a version with what its headers say.

    Raises:
        ValidationError: a known setting has a value that is none.
    """
    spouts, bolts = published.spouts, published.bolts
    if (breakers := headers.get(BREAKER_HEADER)) is not None:
        spouts = _with_breakers(spouts, _SETTINGS.validate_json(breakers))
    if (options := headers.get(OPTIONS_HEADER)) is not None:
        given = _SETTINGS.validate_json(options)
        spouts, bolts = _with_options(spouts, given), _with_options(bolts, given)
    return published.model_copy(update={"spouts": spouts, "bolts": bolts})


def _with_breakers(
    tables: Mapping[str, SpoutTable], given: Mapping[str, dict[str, Any]]
) -> dict[str, SpoutTable]:
    filled = {}
    for name, table in tables.items():
        known = {key: found for key, found in given.get(name, {}).items() if key in BREAKER_SETTINGS}
        filled[name] = SpoutTable.model_validate({**table.model_dump(), **known}) if known else table
    return filled


def _with_options(tables: Mapping[str, Table], given: Mapping[str, dict[str, Any]]) -> dict[str, Table]:
    filled = {}
    for name, table in tables.items():
        model = type(table.spark)
        known = {key: found for key, found in given.get(name, {}).items() if key in model.model_fields}
        filled[name] = table.model_copy(update={"spark": model.model_validate(known)})
    return filled
