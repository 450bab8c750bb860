"""Makes a bolt of a function: its annotations say what it reads and emits, and it stays callable.

Invariant: a function that cannot run is refused when its module is imported. Returning None emits nothing; a
tombstone is a Child. A function without ``None`` in its annotation is never given a tombstone.
"""

import inspect
import types
import typing
from collections import abc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from acktree.producers.bolt import AnyBolt, AsyncBolt, BasicBolt, Emit
from acktree.producers.columns import Child
from acktree.producers.errors import BadHandler, NotDeserializable
from acktree.producers.serdes.payloads import find_serdes
from acktree.producers.tuples import Tuple

Function = TypeVar("Function", bound=Callable[..., Any])
Topics = str | Iterable[str]
KeyOf = Callable[[Any], bytes | str | None]

_MADE_OF, _IS_STAGE = "__acktree_bolt__", "__acktree_stage__"
_MANY = (
    list,
    abc.Iterator,
    abc.Iterable,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
)


def bolt(
    *,
    reads: Topics,
    emits: Topics = (),
    name: str = "",
    reads_as: Any = None,
    emits_as: Any = None,
    key: KeyOf | None = None,
) -> Callable[[Function], Function]:
    """Turn a function into a bolt that reads and emits these topics, which must match its table.

    Its parameter is the payload, annotated with its type, or a Tuple, or one of each. What it returns,
    or each item of a list or a generator, is emitted; with several topics, as ``Child(…, topic=…)``.
    ``name`` is the function's by default; ``reads_as`` and ``emits_as`` override the annotations.
    ``key`` computes the key of a returned value that is not a ``Child``.

    Raises:
        BadHandler: the signature does not have this form.
    """

    def decorate(function: Function) -> Function:
        made = _make(function, name, _topics(reads), _topics(emits), reads_as, emits_as, key)
        setattr(function, _MADE_OF, made)
        return function

    return decorate


def stage(
    *,
    reads: Topics,
    emits: Topics = (),
    name: str = "",
    reads_as: Any = None,
    emits_as: Any = None,
    key: KeyOf | None = None,
) -> Callable[[Function], Function]:
    """Turn a function into the stage of the spout that reads these topics; it has the form of a bolt.

    Raises:
        BadHandler: the signature does not have this form.
    """

    make_bolt = bolt(reads=reads, emits=emits, name=name, reads_as=reads_as, emits_as=emits_as, key=key)

    def decorate(function: Function) -> Function:
        setattr(function, _IS_STAGE, True)
        return make_bolt(function)

    return decorate


def is_stage(found: object) -> bool:
    """Return whether this is a function by ``stage``."""
    return bool(getattr(found, _IS_STAGE, False))


def bolt_class_of(found: object) -> type[AnyBolt] | None:
    """Return the bolt that a decorated function is; None for anything else."""
    made: type[AnyBolt] | None = getattr(found, _MADE_OF, None)
    return made


def as_bolt(given: "AnyBolt | Callable[..., Any]") -> AnyBolt:
    """Return a new bolt of a decorated function, and a bolt as it is."""
    made = bolt_class_of(given)
    return made() if made is not None else cast(AnyBolt, given)


def _topics(given: Topics) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _make(
    function: Callable[..., Any],
    name: str,
    reads: tuple[str, ...],
    emits: tuple[str, ...],
    reads_as: Any,
    emits_as: Any,
    key: KeyOf | None,
) -> type[AnyBolt]:
    label = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise BadHandler(f"{label} is not a function: decorate a def or an async def")
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise BadHandler(f"the annotations of {label} cannot be read: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    takes_tuple = [hints.get(parameter.name) is Tuple for parameter in parameters]
    positional = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    if not positional or not 1 <= len(parameters) <= 2 or (len(parameters) == 2 and sum(takes_tuple) != 1):
        raise BadHandler(f"{label} must have one parameter, the payload or a Tuple, or one of each")
    payload = next(
        (each.name for each, is_tuple in zip(parameters, takes_tuple, strict=True) if not is_tuple), ""
    )
    if payload and payload not in hints and reads_as is None:
        raise BadHandler(
            f"{label}: annotate {payload!r} with the type to decode values as, such as bytes, or set reads_as"
        )
    taken, takes_none = _without_none(hints.get(payload)) if payload in hints else (None, True)
    if reads_as is None and payload:
        reads_as = taken
    if key is not None and not emits:
        raise BadHandler(f"{label} has a key but emits nothing: set emits, or remove key")
    if emits and emits_as is None:
        if "return" not in hints:
            raise BadHandler(f"{label}: annotate its return type, or set emits_as")
        emits_as = _emitted(hints["return"])
    find_serdes(reads_as, f"reads_as of {label}", reads)
    find_serdes(emits_as, f"emits_as of {label}", emits)
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    def call(tup: Tuple) -> Any:
        if not payload:
            return function(tup)
        given = tup.payload
        if given is None and not takes_none and tup.value is None:
            raise NotDeserializable(
                f"{tup!r} is a tombstone, but {payload!r} of {label} does not accept None"
            )
        if len(takes_tuple) == 1:
            return function(given)
        return function(tup, given) if takes_tuple[0] else function(given, tup)

    def execute(self: AnyBolt, tup: Tuple, emit: Emit) -> None:
        found = call(tup)
        if isinstance(found, list):
            emit.many(_to_emit(found, key))
        elif isinstance(found, Iterator):
            for child in found:
                emit.many(_to_emit((child,), key))
        else:
            emit.many(_to_emit((found,), key))

    async def execute_async(self: AnyBolt, tup: Tuple, emit: Emit) -> None:
        found = call(tup)
        if isinstance(found, AsyncIterator):
            async for child in found:
                emit.many(_to_emit((child,), key))
        else:
            found = await found
            emit.many(_to_emit(found if isinstance(found, list | Iterator) else (found,), key))

    body = {
        "name": name or function.__name__,
        "reads": reads,
        "emits": emits,
        "reads_as": reads_as,
        "emits_as": emits_as,
        "execute": execute_async if is_async else execute,
        "__module__": function.__module__,
    }
    return type(function.__name__, (AsyncBolt if is_async else BasicBolt,), body)


def _to_emit(found: Iterable[Any], key: KeyOf | None) -> list[Child]:
    """Return what a function returned as children; None emits nothing."""
    return [
        each if isinstance(each, Child) else Child(each, None, None if key is None else key(each))
        for each in found
        if each is not None
    ]


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without None, and whether it had it."""
    if annotation is None or annotation is type(None):
        return None, True
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, annotation is Any
    left = [each for each in typing.get_args(annotation) if each is not type(None)]
    return typing.Union[tuple(left)], len(left) < len(typing.get_args(annotation))  # noqa: UP007


def _emitted(annotation: Any) -> Any:
    """Return what objects are written as by a return annotation; None if it names no type of theirs.

    >>> _emitted(list[int] | None), _emitted(Child | None)
    (<class 'int'>, None)
    """
    taken, _ = _without_none(annotation)
    parts = (
        typing.get_args(taken) if typing.get_origin(taken) in (typing.Union, types.UnionType) else (taken,)
    )
    found = []
    for part in parts:
        if typing.get_origin(part) in _MANY:
            part, _ = _without_none(typing.get_args(part)[0])
        if part is not None and part is not Child:
            found.append(part)
    found = [part for part in found if part is not bytes] or found  # bytes are written as they are
    return typing.Union[tuple(found)] if found else None  # noqa: UP007
