"""The packers of acks and inits against plain dicts, with limits so small that records are split."""

from collections import defaultdict
from random import Random
from typing import Any

import numpy as np

from acktree.core.topology.registry import History, Published
from acktree.producers.collecting.arithmetic.packing import AckPacker, InitPacker
from acktree.wire.codec import decode_ack, decode_ack_init
from cores.script import Core, Did, holds, same

ACKERS = {1: 1, 2: 3, 3: 0}
LIMIT = 3
ROOTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 2**63 - 1, 2**63, 2**64 - 1)
HISTORY = History(
    "t",
    {v: Published(name="t", ackers=n, version=v, spout_tasks={}, slots=()) for v, n in ACKERS.items()},
)
MODULE = "acktree.producers.collecting.arithmetic.packing"


class PackerScript:
    """Both packers, and by version and root what was added since the last flush."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        self.sent: list[tuple[str, int, bytes]] = []
        self.at_once: list[tuple[str, int, bytes]] = []
        self.acks = AckPacker(HISTORY, "task", self._send, lambda *record: self.at_once.append(record))
        self.inits = InitPacker(HISTORY, 5, self._send)
        self.clear()

    def _send(self, topic: str, partition: int, value: bytes) -> None:
        self.sent.append((topic, partition, value))

    def clear(self) -> None:
        self.acked: dict[Any, int] = defaultdict(int)
        self.born: dict[Any, int] = defaultdict(int)
        self.failed: dict[Any, str] = {}
        self.reset: set[Any] = set()
        self.ack_entries = self.init_entries = 0
        self.sent.clear()

    def step(self) -> None:
        draw, kind = self.draw, self.draw.random()
        version, root, value = draw.choice((1, 2, 2, 3)), draw.choice(ROOTS), draw.randrange(4)
        if kind < 0.3:
            self.did("ack", version, root, value)
            self.acks.ack(version, root, value)
            self.acked[version, root] ^= value
            self.ack_entries += 1
        elif kind < 0.4:
            self.did("init", version, root, value)
            self.inits.add(version, root, value)
            self.born[version, root] ^= value
            self.init_entries += 1
        elif kind < 0.6:
            self.many(version)
        elif kind < 0.7:
            self.did("fail", version, root, value)
            self.acks.fail(version, root, f"because {value}")
            self.failed.setdefault((version, root), f"because {value}")
        elif kind < 0.8:
            self.did("reset", version, root)
            self.acks.reset(version, root)
            self.reset.add((version, root))
        elif kind < 0.85:
            self.reset_at_once(version, root)
        else:
            self.flush()
        same("waiting acks", len(self.acks), self.ack_entries + len(self.failed) + len(self.reset))
        same("waiting inits", len(self.inits), self.init_entries)

    def many(self, version: int) -> None:
        pairs = [(self.draw.choice(ROOTS), self.draw.randrange(4)) for _ in range(self.draw.randint(0, 9))]
        roots, values = np.array(pairs, np.uint64).reshape(-1, 2).T
        is_ack = self.draw.random() < 0.6
        self.did("ack_many" if is_ack else "init_many", version, pairs)
        (self.acks.ack_many if is_ack else self.inits.add_many)(version, roots, values)
        for root, value in pairs:
            (self.acked if is_ack else self.born)[version, root] ^= value
        self.ack_entries += len(pairs) * is_ack
        self.init_entries += len(pairs) * (not is_ack)

    def reset_at_once(self, version: int, root: int) -> None:
        self.did("reset_at_once", version, root)
        self.acks.reset_at_once(version, root)
        records = [(topic, at, decode_ack(value).resets.tolist()) for topic, at, value in self.at_once]
        same("at once", records, [("t.ack", root % ACKERS[version], [root])] if ACKERS[version] else [])
        self.at_once.clear()

    def flush(self) -> None:
        self.did("flush")
        self.acks.flush()
        self._check_acks()
        self.sent.clear()
        self.inits.flush()
        self._check_inits()
        self.clear()

    def _check_acks(self) -> None:
        acked, failed, reset, with_acks = [], [], [], set()
        for topic, partition, value in self.sent:
            record = decode_ack(value)
            place = record.version, partition
            same("frame", (topic, record.task), ("t.ack", "task"))
            holds("no ack is sent before a fail", not (record.fails and place in with_acks))
            with_acks |= {place} if len(record.acks) else set()
            lengths = [len(record.acks), len(record.fails), len(record.resets)]
            holds("a record is empty or too large", 0 < max(lengths) <= LIMIT)
            acked += [((record.version, root), xor) for root, xor in record.acks.tolist()]
            failed += [((record.version, fail.root), fail.reason) for fail in record.fails]
            reset += [(record.version, root) for root in record.resets.tolist()]
            roots = [*record.acks["root"].tolist(), *(f.root for f in record.fails), *record.resets.tolist()]
            holds("partition", all(root % ACKERS[record.version] == partition for root in roots))
        same("acks", sorted(acked), self._known(self.acked.items()))
        same("fails", sorted(failed), self._known(self.failed.items()))
        same("resets", sorted(reset), sorted(key for key in self.reset if ACKERS[key[0]]))

    def _check_inits(self) -> None:
        born = []
        for topic, partition, value in self.sent:
            record = decode_ack_init(value)
            same("frame", (topic, record.spout_task), ("t.ack-init", 5))
            holds("a record is empty or too large", 0 < len(record.inits) <= LIMIT)
            born += [((record.version, root), xor) for root, xor in record.inits.tolist()]
            roots = record.inits["root"].tolist()
            holds("partition", all(root % ACKERS[record.version] == partition for root in roots))
        same("inits", sorted(born), self._known(self.born.items()))

    def _known(self, items: Any) -> list[Any]:
        return sorted((key, value) for key, value in items if ACKERS[key[0]])


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to sixteen operations, and flush at its end."""
    script = PackerScript(draw, did)
    for _ in range(draw.randint(3, 16)):
        script.step()
    script.flush()


CORE = Core(
    run_seed,
    {f"{MODULE}.{name}": LIMIT for name in ("MAX_ENTRIES", "MAX_FAILS", "MAX_RESETS")}
    | {f"{MODULE}.MIN_COMPILED_ENTRIES": 12},
)
