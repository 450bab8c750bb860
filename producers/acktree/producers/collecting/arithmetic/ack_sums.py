"""The arithmetic of acks: the XOR of acked tuples' edges and of their children's, per root.

Invariant: a child of several tuples is split among their acks: each gets a random part, and the XOR of all
parts is the child's value. So neither some of the acks nor the same value twice completes a tree early. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.arithmetic.targets import Target
from acktree.producers.tuples import Tuple
from acktree.wire.header import ANCHOR, Anchor, encode_header
from acktree.wire.ids import IdArray, emitted_values, fnv1a64, mix_array

AnchorArray = NDArray[Any]

HEAD_BYTES = 3
"""Size of a header up to its anchors."""


class AckSums:
    """Anchors of ``acked`` tuples, and ``parts`` of the values of children that several tuples share."""

    def __init__(self, bolt: str, packer: AckPacker) -> None:
        self.acked: list[bytes] = []
        self.parts: list[bytes] = []
        self._hash = np.uint64(fnv1a64(bolt))
        self._packer = packer

    def pack(self, targets: Iterable[Target]) -> None:
        """Move all of it, and the values of the children at ``targets``, to the packer."""
        if self.acked:
            own = _unpack(self.acked)
            self._ack(own, self._own_values(own))
        for target in targets:
            if target.acked_children:
                children = _unpack(target.acked_children)
                self._ack(children, emitted_values(children["edge"], target.hashes))
        if self.parts:
            parts = _unpack(self.parts)
            self._ack(parts, parts["edge"])

    def _own_values(self, own: AnchorArray) -> IdArray:
        """Return the consumer edges of inputs."""
        return mix_array(own["edge"] ^ self._hash)

    def _ack(self, anchors: AnchorArray, values: IdArray) -> None:
        versions = anchors["version"]
        for version in np.unique(versions):
            is_version = versions == version
            self._packer.ack_many(int(version), anchors["root"][is_version], values[is_version])

    def split_value(
        self, child: Anchor, value: int, parents: Sequence[Tuple], take_edge: Callable[[], bytes]
    ) -> None:
        """Split a child's value among its parents of one root: random parts, and the rest for the last one.

        With the whole value in both of two acks the tree would complete early; with the whole value in one of
        them, the tree would not wait for the other.
        """
        for parent in parents[:-1]:
            part = int.from_bytes(take_edge(), "little")
            value ^= part
            defer_to_ack(parent, [(self.parts, _anchor_bytes(child, part))])
        defer_to_ack(parents[-1], [(self.parts, _anchor_bytes(child, value))])


def defer_to_ack(parent: Tuple, children: list[tuple[list[bytes], bytes]]) -> None:
    """Add the anchors of children to their buffers when the parent is acked."""
    if parent._deferred is None:
        parent._deferred = children
    else:
        parent._deferred += children


def _unpack(packed: list[bytes]) -> AnchorArray:
    anchors = np.frombuffer(b"".join(packed), ANCHOR)
    packed.clear()
    return anchors


def _anchor_bytes(child: Anchor, value: int) -> bytes:
    return encode_header(0, (Anchor(child.version, child.root, value),))[HEAD_BYTES:]
