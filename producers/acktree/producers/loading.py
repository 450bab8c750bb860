"""From MODULE:NAME to the bolt or spout that a user wrote.

Invariant: what is returned can run: it is of the kind asked for and has the method that does the work, which
otherwise would fail every tuple. Anything else is one clear BadHandler.
"""

import sys
from importlib import import_module
from typing import Any, TypeVar

from acktree.producers.errors import BadHandler

Made = TypeVar("Made")


def make_handler(place: str, kinds: tuple[type[Made], ...], does: str) -> Made:
    """Return what the class or function at MODULE:NAME makes; ``does`` names the method that does the work.

    The current folder is searched for MODULE.

    Raises:
        BadHandler: there is no such module or name, or it makes something else.
    """
    factory = _find(place)
    wanted = " or ".join(kind.__name__ for kind in kinds)
    if isinstance(factory, type) and not issubclass(factory, kinds):
        raise BadHandler(f"{place} is no {wanted}: subclass acktree.producers.{kinds[0].__name__}")
    try:
        made = factory()
    except TypeError as error:
        raise BadHandler(f"{place} cannot be called without arguments: {error}") from error
    if not isinstance(made, kinds):
        raise BadHandler(f"{place} returned {made!r}, which is no {wanted}: subclass one of them")
    check_written(made, kinds, does)
    return made


def check_written(made: object, kinds: tuple[type[Any], ...], does: str) -> None:
    """Raise BadHandler where ``does`` is still the one of the base class, which does nothing."""
    kind = type(made)
    if any(getattr(kind, does) is getattr(base, does) for base in kinds if issubclass(kind, base)):
        raise BadHandler(
            f"{kind.__name__} has no {does}() of its own, so it can do nothing: write a subclass that has one"
        )


def _find(place: str) -> Any:
    module, colon, attribute = place.partition(":")
    if not (module and colon and attribute):
        raise BadHandler(f"{place!r} is not MODULE:NAME, such as count_words:CountWords")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise BadHandler(f"module {module!r} needs {error.name!r}, which is not installed") from error
        raise BadHandler(f"there is no module {module!r} in the current folder or installed") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadHandler(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise BadHandler(f"{place} is {found!r}, neither a class nor a function that makes one")
    return found
