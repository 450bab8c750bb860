"""Loads a user's bolt or spout from MODULE:NAME.

Invariant: a returned class can run: it is of the requested kind and overrides the method that does the work;
without one, every tuple would fail. Anything else raises BadHandler.
"""

import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

from acktree.core.user_code import clear_user_errors, load_callable
from acktree.producers.errors import BadHandler
from acktree.producers.functions import bolt_class_of

Made = TypeVar("Made")


def make_handler(place: str, kinds: tuple[type[Made], ...], does: str = "") -> Made:
    """Call the class or function at MODULE:NAME and return the result; it must override the method ``does``.

    MODULE may also be in the current folder. Without ``does``, the code that runs it checks it.

    Raises:
        BadHandler: there is no such module or name, or it returns something else.
    """
    factory = load_callable(place, "MODULE:NAME", "count_words:CountWords", BadHandler)
    factory = bolt_class_of(factory) or factory
    wanted = " or ".join(kind.__name__ for kind in kinds)
    if isinstance(factory, type) and not issubclass(factory, kinds):
        raise BadHandler(f"{place} is not a {wanted}: subclass acktree.producers.{kinds[0].__name__}")
    with clear_user_errors(place):
        try:
            made = factory()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # it was called
            raise BadHandler(f"{place} cannot be called without arguments: {error}") from error
    if not isinstance(made, kinds):
        raise BadHandler(f"{place} returned {made!r}, which is not a {wanted}: subclass one of them")
    if does:
        check_written(made, kinds, does)
    return made


def check_returned(found: object) -> None:
    """Raise BadHandler for a call that has not run: nobody would await or iterate what it returned.

    >>> check_returned(word for word in "ab")
    Traceback (most recent call last):
    acktree.producers.errors.BadHandler: execute returned a generator, which is never iterated: emit its items
    """
    if inspect.iscoroutine(found):
        found.close()  # else Python warns that nobody has awaited it
        raise BadHandler("execute returned a coroutine, which is never awaited: subclass AsyncBolt")
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        raise BadHandler("execute returned a generator, which is never iterated: emit its items")


def check_plain(made: object, methods: Iterable[str]) -> None:
    """Raise BadHandler for a method that is async or a generator: a call of it would run nothing."""
    for name in methods:
        found = getattr(type(made), name, None)
        if inspect.iscoroutinefunction(found):
            raise BadHandler(
                f"{type(made).__name__}.{name} is async, but would never be awaited: make it a plain def"
            )
        if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
            raise BadHandler(
                f"{type(made).__name__}.{name} is a generator, but would never be iterated: remove its yield"
            )


def check_written(made: object, kinds: tuple[type[Any], ...], does: str) -> None:
    """Raise BadHandler if the method ``does`` is not overridden."""
    kind = type(made)
    if any(getattr(kind, does) is getattr(base, does) for base in kinds if issubclass(kind, base)):
        raise BadHandler(f"{kind.__name__} has no {does}(): subclass it and override that method")
