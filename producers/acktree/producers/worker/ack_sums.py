"""The arithmetic of acks: what acked tuples and their children come to, per root.

Invariant: of a child of several tuples each owes a random share, and all shares together are the child's
value; so neither a part of the acks nor the same value twice completes a tree early. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.producers.kafka.packing import AckPacker
from acktree.producers.tuples import Tuple
from acktree.producers.worker.targets import Target
from acktree.schemas.header import ANCHOR, Anchor, encode_header
from acktree.schemas.ids import IdArray, emitted_values, fnv1a64, mix_array

AnchorArray = NDArray[Any]

HEAD_BYTES = 3
"""Of a header before its anchors."""


class AckSums:
    """Anchors of tuples that are ``acked``, and ``shares`` of children that several acked tuples owe."""

    def __init__(self, bolt: str, packer: AckPacker) -> None:
        self.acked: list[bytes] = []
        self.shares: list[bytes] = []
        self._hash = np.uint64(fnv1a64(bolt))
        self._packer = packer

    def hand_in(self, targets: Iterable[Target]) -> None:
        """Hand all of it, and what the children at ``targets`` are worth, to the packer."""
        own = _take(self.acked)
        self._ack(own, mix_array(own["edge"] ^ self._hash))
        for target in targets:
            if target.due:
                children = _take(target.due)
                self._ack(children, emitted_values(children["edge"], target.hashes))
        shares = _take(self.shares)
        self._ack(shares, shares["edge"])

    def _ack(self, anchors: AnchorArray, values: IdArray) -> None:
        versions = anchors["version"]
        for version in np.unique(versions):
            here = versions == version
            self._packer.ack_many(int(version), anchors["root"][here], values[here])

    def share_out(
        self, child: Anchor, value: int, owners: Sequence[Tuple], take_edge: Callable[[], bytes]
    ) -> None:
        """Divide a child's value among its parents of one root: random shares, the rest for the last.

        The same value in two acks would complete the tree early; in one alone, the other would not count.
        """
        for owner in owners[:-1]:
            share = int.from_bytes(take_edge(), "little")
            value ^= share
            owe(owner, self.shares, _anchor_bytes(child, share))
        owe(owners[-1], self.shares, _anchor_bytes(child, value))


def owe(parent: Tuple, due: list[bytes], child: bytes) -> None:
    """Let a child's anchor join ``due`` when its parent is acked."""
    if parent._owed is None:
        parent._owed = [(due, child)]
    else:
        parent._owed.append((due, child))


def _take(packed: list[bytes]) -> AnchorArray:
    anchors = np.frombuffer(b"".join(packed), ANCHOR)
    packed.clear()
    return anchors


def _anchor_bytes(child: Anchor, value: int) -> bytes:
    return encode_header(0, (Anchor(child.version, child.root, value),))[HEAD_BYTES:]
