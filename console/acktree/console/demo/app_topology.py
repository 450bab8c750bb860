"""Builds the topology of a file of stages and bolts from their decorators, for development.

Invariant: an incomplete or contradictory file is refused, with the line that is missing.
"""

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from acktree.core.topology.file import BoltTable, SpoutTable, Topology
from acktree.core.user_code import clear_user_errors
from acktree.producers.bolt import AnyBolt
from acktree.producers.errors import BadHandler
from acktree.producers.functions import bolt_class_of, is_stage


@dataclass(frozen=True, slots=True)
class AppPart:
    """A stage or a bolt of a file: MODULE:NAME, and its name in the topology."""

    place: str
    name: str
    is_stage: bool
    reads: tuple[str, ...]
    emits: tuple[str, ...]


def load_parts(file: Path) -> list[AppPart]:
    """Import a file, and return the stages and bolts that it defines.

    Raises:
        BadHandler: it is not there, or defines no stage. UserCodeFailed: it raises.
    """
    if file.suffix != ".py" or not file.is_file():
        raise BadHandler(f"{file} must be a Python file with functions by @stage and @bolt")
    sys.path.insert(0, str(file.resolve().parent))
    with clear_user_errors(str(file)):
        module = importlib.import_module(file.stem)
    parts = list(_parts(module))
    if not any(part.is_stage for part in parts):
        raise BadHandler(f"{file} defines no stage: decorate a function with @stage(reads=…, emits=…)")
    names = [part.name for part in parts]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadHandler(f"{file} has several parts named {sorted(twice)[0]!r}: give each its own name")
    return parts


def _parts(module: ModuleType) -> Iterable[AppPart]:
    for name, found in vars(module).items():
        made = bolt_class_of(found)
        if made is None and isinstance(found, type) and issubclass(found, AnyBolt) and found.reads:
            made = found
        if made is not None and found.__module__ == module.__name__:
            yield AppPart(
                f"{module.__name__}:{name}",
                made.name or name.lower(),
                is_stage(found),
                made.reads,
                made.emits,
            )


def topology_of(name: str, parts: Iterable[AppPart]) -> Topology:
    """Return the topology of these parts, with one acker partition.

    >>> part = AppPart("app:split", "split", True, ("lines",), ("words",))
    >>> topology_of("app", [part]).spouts["split"].topics
    ('lines',)
    """
    parts = list(parts)
    return Topology(
        name=name,
        ackers=1,
        spouts={
            part.name: SpoutTable.model_validate({"topics": part.reads, "emits": part.emits})
            for part in parts
            if part.is_stage
        },
        bolts={
            part.name: BoltTable.model_validate({"reads": part.reads, "emits": part.emits})
            for part in parts
            if not part.is_stage
        },
    )
