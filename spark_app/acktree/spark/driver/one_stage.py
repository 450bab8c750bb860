"""Keeps a batch to one stage: a second one would find the batch written, write nothing, and lose its rows.

Invariant: of a component's stages in one driver process, one writes a batch that Spark has read, once. A
batch that runs again after a restart of the query is read again, so it is another one; and a stage whose call
failed may be called again.

A stage that waits for its first call is noticed before anything is written; any other second stage only when
it is called. ``StagePlace.is_refused`` then also ends the next call of the first.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from acktree.spark.shared.per_process import PerProcess
from acktree.wire.errors import AcktreeError

ONE_STAGE = (
    "a batch has exactly one: give it whole, and once, to one stage whose transform filters it and returns "
    "all outputs, as a dict of topic to DataFrame"
)


class SecondStage(AcktreeError):
    """A batch was given to two stages, or to one stage twice: the rows of the second would not be written."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class StagePlace:
    """The place of one stage among those of its component; it lives as long as its stage."""

    component: "_Component"
    name: str
    number: int
    is_called: bool = False
    is_refused: bool = False

    def check_alone(self) -> None:
        """Check before a batch that no other stage of the component waits for its first call.

        An earlier one that does is that of a query which did not start.

        Raises:
            SecondStage: one does, or this stage has shared a batch with another one.
        """
        if self.is_refused or (not self.is_called and self._is_waited_for()):
            raise SecondStage(f"several stages were made for {self.name}, but {ONE_STAGE}")
        self.is_called = True

    def _is_waited_for(self) -> bool:
        if not self._waiting():
            return False
        gc.collect()  # a stage that nobody can call
        return self._waiting()

    def _waiting(self) -> bool:
        others = list(self.component.places)
        return any(other.number > self.number and not other.is_called for other in others)

    @contextmanager
    def writing(self, batch: Any) -> Iterator[None]:
        """Write a batch, which equals only itself, in the block.

        Raises:
            SecondStage: another call has written it, or writes it.
        """
        call = _Call(self)
        calls = self.component.calls
        before = calls.setdefault(batch, call)
        if before is not call and not (before.place is self and before.has_failed):
            before.place.is_refused = self.is_refused = True
            raise SecondStage(f"{self.name} has a second stage for one batch, but {ONE_STAGE}")
        calls[batch] = call
        for other in [other for other in calls if other != batch]:
            calls.pop(other, None)
        try:
            yield
        except BaseException:
            call.has_failed = True
            raise
        if self.is_refused:
            raise SecondStage(f"{self.name} had a second stage for one batch, but {ONE_STAGE}")


@dataclass(slots=True)
class _Call:
    place: StagePlace
    has_failed: bool = False


@dataclass(slots=True)
class _Component:
    """The stages of a component in this process, and the call of the last batch."""

    places: WeakSet[StagePlace] = field(default_factory=WeakSet)
    calls: dict[Any, _Call] = field(default_factory=dict)
    made: int = 0


_components: PerProcess[_Component] = PerProcess()


def take_place(bootstrap: str, group: str) -> StagePlace:
    """Return the place of a new stage of the component with a consumer group."""
    component = _components.get(_Component, bootstrap, group)
    component.made += 1
    place = StagePlace(component, group, component.made)
    component.places.add(place)
    return place
