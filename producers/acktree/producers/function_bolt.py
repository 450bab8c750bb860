"""A bolt as a function: ``@bolt(reads="words", emits="counts")`` over ``def count(word: Word) -> Count``.

Invariant: what the function is given is what its annotations say, and a function that cannot be run as a bolt
is refused where it is defined. After Faust's agents, FastStream's subscribers and Quix' functions.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import update_wrapper
from types import NoneType, UnionType
from typing import Any, Generic, ParamSpec, TypeVar, Union, get_args, get_origin

from acktree.producers.bolt import AnyBolt, AsyncBolt, BasicBolt, Emit
from acktree.producers.collector import UserHeaders
from acktree.producers.errors import BadHandler, Reject
from acktree.producers.payload_formats import Json, format_of
from acktree.producers.tuples import Tuple

Topics = str | Iterable[str]
P = ParamSpec("P")
R = TypeVar("R")


class NoValue(Reject):
    """The record is a tombstone, and the function takes no None."""


class JsonOrText(Json):
    """What a function returns: text as it is, anything else as JSON."""

    def encode(self, payload: Any, topic: str) -> bytes:
        return payload.encode() if isinstance(payload, str) else super().encode(payload, topic)


@dataclass(frozen=True, slots=True)
class To:
    """A value for a topic, with a key or headers; ``topic`` may be omitted if the bolt emits to one only."""

    value: Any
    topic: str | None = None
    key: bytes | str | None = None
    headers: UserHeaders | None = None
    timestamp_ms: int | None = None


class BoltFunction(Generic[P, R]):
    """A function that ``acktree bolt run`` and the test kit take as a bolt; called, it is the function."""

    def __init__(self, function: Callable[P, R], settings: "_Settings") -> None:
        """Raises BadHandler for a function that cannot be a bolt."""
        self._function, self._settings = function, settings
        self._input = _input_of(function)
        update_wrapper(self, function)
        format_of(self._input.reads_as if settings.reads_as is None else settings.reads_as)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def bolt(self) -> AnyBolt:
        """Return a new bolt that executes the function."""
        function: Any = self._function
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        kind: type[AnyBolt] = _AsyncFunction if is_async else _SyncFunction
        settings, given = self._settings, self._input
        reads_as = given.reads_as if settings.reads_as is None else settings.reads_as
        members = {
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "name": settings.name,
            "never_retry": settings.never_retry,
            "reads_as": reads_as,
            "emits_as": JsonOrText() if settings.emits_as is None else settings.emits_as,
            "reads_topics": settings.reads,
            "emits_topics": settings.emits,
            "max_concurrent": settings.max_concurrent,
        }
        made: Any = type(function.__name__, (kind,), members)()
        made.call = _Call(function, given, settings.key, reads_as is not None)
        bolt: AnyBolt = made
        return bolt


@dataclass(frozen=True, slots=True)
class _Settings:
    reads: tuple[str, ...]
    emits: tuple[str, ...]
    name: str
    key: Callable[[Any], bytes | str | None] | None
    reads_as: Any
    emits_as: Any
    never_retry: tuple[type[Exception], ...]
    max_concurrent: int


def bolt(
    *,
    reads: Topics = (),
    emits: Topics = (),
    name: str = "",
    key: Callable[[Any], bytes | str | None] | None = None,
    reads_as: Any = None,
    emits_as: Any = None,
    never_retry: tuple[type[Exception], ...] = (),
    max_concurrent: int = AsyncBolt.max_concurrent,
) -> Callable[[Callable[P, R]], BoltFunction[P, R]]:
    """Make a bolt of a function of one payload; it may be ``async``, or yield what it emits.

    The annotation of its first parameter says how a value is read: ``bytes`` as it is, ``str`` as text,
    anything else as JSON of that type, or ``Tuple`` for the tuple itself. With ``| None`` tombstones are
    given to it as None; without, they fail and are never tried again. Further parameters may be annotated
    ``Tuple``: they are given the tuple, for its key, headers and origin.

    It returns what to emit: a value, a list or an iterator of values, or None. A value is ``bytes`` or
    ``str`` as they are, anything else as JSON, or ``To(value, topic=…, key=…)``. ``key`` returns the key of
    a value that has none of its own.

    ``reads`` and ``emits`` are topics; where they are given, they have to agree with the bolt's table.
    ``reads_as`` and ``emits_as`` take the place of the annotations, for formats such as Avro.

    Raises:
        BadHandler: the function's parameters or a setting are wrong.
    """
    settings = _Settings(
        *(_topics(reads), _topics(emits), name, key, reads_as, emits_as, never_retry, max_concurrent)
    )

    def decorate(function: Callable[P, R]) -> BoltFunction[P, R]:
        if not inspect.isroutine(function):
            raise BadHandler(f"@bolt(…) is for functions, not for {function!r}: subclass a bolt instead")
        return BoltFunction(function, settings)

    if key is not None and not callable(key):
        raise BadHandler(f"key of @bolt must be a function of the value, not {key!r}")
    return decorate


def as_bolt(given: "AnyBolt | BoltFunction[Any, Any]") -> AnyBolt:
    """Return the bolt of a function that is one, and a bolt as it is."""
    return given.bolt() if isinstance(given, BoltFunction) else given


def _topics(given: Topics) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, slots=True)
class _Input:
    """What a function takes: the tuple itself, or its payload; and tuples by name."""

    wants_tuple: bool
    takes_none: bool
    reads_as: Any
    tuples: tuple[str, ...]


def _input_of(function: Callable[..., Any]) -> _Input:
    name = getattr(function, "__name__", repr(function))
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError) as error:
        raise BadHandler(f"the annotations of {name} cannot be read: {error}") from error
    parameters = list(signature.parameters.values())
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in by_place:
        raise BadHandler(f"{name} takes no payload: give it a parameter, such as def {name}(word: Word)")
    others = [each for each in parameters[1:] if each.annotation is Tuple]
    rest = [each for each in parameters[1:] if each not in others and each.default is each.empty]
    if rest:
        raise BadHandler(
            f"{name} has a parameter {rest[0].name!r} that nothing is given for: a bolt gives its first one "
            "the payload, and those annotated acktree.producers.Tuple the tuple"
        )
    kind = parameters[0].annotation
    if kind is Tuple:
        return _Input(True, True, None, tuple(each.name for each in others))
    if kind is inspect.Parameter.empty:
        return _Input(False, True, None, tuple(each.name for each in others))
    takes_none, kind = _without_none(kind)
    return _Input(False, takes_none, kind, tuple(each.name for each in others))


def _without_none(kind: Any) -> tuple[bool, Any]:
    if get_origin(kind) not in (Union, UnionType):
        return kind is NoneType, kind
    left = [each for each in get_args(kind) if each is not NoneType]
    return len(left) < len(get_args(kind)), Union[tuple(left)]  # noqa: UP007 (made of a list)


class _Call:
    """Calls a function for a tuple, and emits what it returns."""

    def __init__(
        self,
        function: Callable[..., Any],
        given: _Input,
        key: Callable[[Any], bytes | str | None] | None,
        has_format: bool,
    ) -> None:
        self._function, self._given, self._key = function, given, key
        self._has_format = has_format and given.reads_as is not bytes

    def __call__(self, tup: Tuple) -> Any:
        given = self._given
        named = dict.fromkeys(given.tuples, tup)
        if given.wants_tuple:
            return self._function(tup, **named)
        payload = tup.payload if self._has_format else tup.value
        if payload is None and tup.value is None and not given.takes_none:
            raise NoValue(
                f"{tup.topic}/{tup.partition}/{tup.offset} is a tombstone, and {self._function.__name__} "
                "takes no None: annotate its parameter with | None to be given it"
            )
        return self._function(payload, **named)

    def emit(self, emit: Emit, returned: Any) -> None:
        if returned is None:
            return
        made = returned if isinstance(returned, To) else To(returned)
        key = self._key(made.value) if made.key is None and self._key is not None else made.key
        emit(made.value, topic=made.topic, key=key, headers=made.headers, timestamp_ms=made.timestamp_ms)


class _SyncFunction(BasicBolt):
    call: _Call

    def execute(self, tup: Tuple, emit: Emit) -> None:
        returned = self.call(tup)
        for each in returned if isinstance(returned, list | Iterator) else (returned,):
            self.call.emit(emit, each)


class _AsyncFunction(AsyncBolt):
    call: _Call

    async def execute(self, tup: Tuple, emit: Emit) -> None:
        returned = self.call(tup)
        if isinstance(returned, AsyncIterator):
            async for each in returned:
                self.call.emit(emit, each)
            return
        if isinstance(returned, Awaitable):
            returned = await returned
        for each in returned if isinstance(returned, list | Iterator) else (returned,):
            self.call.emit(emit, each)
