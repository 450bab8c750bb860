"""Calls every compiled function once, so that nothing is compiled while the group waits for this member.

The machine code is cached on disk: only the first start on a machine compiles, for about ten seconds.
"""

from functools import cache

import numpy as np

from acktree.acker.folding.cut import Positions
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.invalid import InvalidRecords
from acktree.acker.folding.partition import Partition
from acktree.acker.folding.validation import RecordValidator
from acktree.core.topology.registry import History, Published
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ENTRY, ID, Ack, AckInit, Fail


@cache
def warm_up() -> None:
    """Compile the acker's compiled functions, or load them from the cache; once a process."""
    published = Published(name="warm-up", ackers=1, version=1, spout_tasks={"spout": (0,)}, slots=())
    validator = RecordValidator(History("warm-up", {1: published}), lambda: None, InvalidRecords())
    partition = Partition(Positions(0, 0), AgeLimits(1, 1, 1), seed=1)
    entries, times = np.array([(1, 1), (2, 2)], ENTRY), np.zeros(1, np.int64)
    inits = validator.inits("", 0, [encode_ack_init(AckInit(0, 1, entries))], [0], 0)
    record = Ack("", 1, entries[:1], (Fail(2, ""),), np.array([3], ID))
    partition.fold_inits(inits, times, 1, 0)
    partition.fold_acks(validator.acks("", 0, [encode_ack(record)], [0], 0), times, 1, 0)
    partition.table.expire(0)
    partition.table.oldest_pending(0, 1)
    partition.table.renew_orphans(0, 0, 0, 0, 0)
    partition.table.entry(1)
    partition.table.reserve(10_000)
