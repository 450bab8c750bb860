"""What all cores share: how a script is drawn, recorded and compared.

Invariant: a script is a function of its random source alone, so a seed gives the same one again.
"""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import NamedTuple

Did = Callable[..., None]
"""Records one operation with its arguments; it does nothing until a seed is replayed."""


class Core(NamedTuple):
    """One pure core: what runs a script of it, and what keeps its scripts small.

    ``patches`` are constants of the product by their full names; one seed of ``every`` is run.
    """

    run_seed: Callable[[Random, Did], None]
    patches: Mapping[str, object] = MappingProxyType({})
    every: int = 1


class Mismatch(AssertionError):
    """The product and the model differ."""


def same(what: str, product: object, model: object) -> None:
    """Raise Mismatch unless the product's value is the model's."""
    if product != model:
        raise Mismatch(f"{what}: the product has {product!r}, the model {model!r}")


def holds(what: str, is_true: object) -> None:
    """Raise Mismatch unless a property holds."""
    if not is_true:
        raise Mismatch(what)
