"""The fold alone, from memory, with a plain dict beside it; and how many bytes a pending root takes.

Caveats: one thread, records of 500 entries decoded before the clock starts, ids spread at random, every root
with one init and three acks, 1 M roots pending all the time. The dict does the same folding and nothing else.
"""

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from acktree.acker.folding.table import Table
from acktree.acker.warm_up import warm_up
from acktree.wire.batch_codec import AckBatch, InitBatch, Integers, decode_ack_batch, decode_init_batch
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ENTRY, Ack, AckInit, EntryArray
from acktree.wire.ids import IdArray
from clock import this_process

ACKS_PER_ROOT = 3
PER_RECORD = 500
RECORDS_PER_BATCH = 200
SEED = 0x9E3779B97F4A7C15


class Fold(NamedTuple):
    """Events per CPU second with the table, with a dict; and the longest single call in milliseconds."""

    table_per_s: float
    dict_per_s: float
    longest_ms: float


def _pairs(roots: IdArray, values: IdArray) -> EntryArray:
    pairs = np.empty(len(roots), ENTRY)
    pairs["root"], pairs["value"] = roots, values
    return pairs


def _batches(pairs: EntryArray, *, is_init: bool) -> Iterator[InitBatch | AckBatch]:
    step = PER_RECORD * RECORDS_PER_BATCH
    for start in range(0, len(pairs), step):
        cuts = range(start, min(start + step, len(pairs)), PER_RECORD)
        chunks = [pairs[cut : cut + PER_RECORD] for cut in cuts]
        if is_init:
            yield decode_init_batch([encode_ack_init(AckInit(0, 1, chunk)) for chunk in chunks])
        else:
            yield decode_ack_batch([encode_ack(Ack("bolt", 1, chunk)) for chunk in chunks])


def _stream(pending: int) -> tuple[EntryArray, list[tuple[EntryArray, bool]]]:
    """Return the inits that fill the table, then rounds that each open as many trees as they complete."""
    source = np.random.default_rng(1)
    roots = source.integers(1, 2**64 - 1, 2 * pending, np.uint64)
    edges = source.integers(1, 2**64 - 1, (2 * pending, ACKS_PER_ROOT), np.uint64)
    inits = _pairs(roots, np.bitwise_xor.reduce(edges, axis=1))
    rounds: list[tuple[EntryArray, bool]] = []
    step = min(PER_RECORD * RECORDS_PER_BATCH, pending)
    for start in range(0, pending, step):
        rounds.append((inits[pending + start : pending + start + step], True))
        for edge in range(ACKS_PER_ROOT):
            some = start + source.permutation(min(step, pending - start))
            rounds.append((_pairs(roots[some], edges[some, edge]), False))
    return inits[:pending], rounds


def measure_fold(pending: int) -> Fold:
    """Fold init + 3 acks a root at ``pending`` roots, once with the table and once with a dict."""
    warm_up()
    fill, rounds = _stream(pending)
    table, longest_s = Table(SEED), 0.0
    events = sum(len(pairs) for pairs, _ in rounds)
    _fold_all(table, list(_batches(fill, is_init=True)))
    assert table.pending == pending
    decoded = [batch for pairs, is_init in rounds for batch in _batches(pairs, is_init=is_init)]
    begin = this_process()
    longest_s = _fold_all(table, decoded)
    table_s = this_process().since(begin).cpu_s
    assert table.pending == pending
    assert table.orphans == 0
    return Fold(
        events / table_s, _measure_dict(fill, rounds[: 4 * max(1, len(rounds) // 16)]), longest_s * 1000
    )


def _fold_all(table: Table, batches: list[InitBatch | AckBatch]) -> float:
    longest_s = 0.0
    for batch in batches:
        begin_s = time.perf_counter()
        ticks: Integers = np.zeros(len(batch.faults), np.int64)
        if isinstance(batch, InitBatch):
            table.fold_inits(batch, ticks, 0)
        else:
            table.fold_acks(batch, ticks, 0)
        longest_s = max(longest_s, time.perf_counter() - begin_s)
    return longest_s


def _measure_dict(fill: EntryArray, rounds: list[tuple[EntryArray, bool]]) -> float:
    """Return events per CPU second of a fold into a dict of root to value; it is not asked for more."""
    held: dict[int, int] = dict(fill.tolist())
    listed = [pairs.tolist() for pairs, _ in rounds]
    gc.disable()
    begin = this_process()
    for pairs in listed:
        for root, value in pairs:
            left = held.get(root, 0) ^ value
            if left:
                held[root] = left
            else:
                del held[root]
    seconds = this_process().since(begin).cpu_s
    gc.enable()
    return sum(map(len, listed)) / seconds


class Memory(NamedTuple):
    """Bytes of process memory a pending root, and the longest single fold call while growing."""

    bytes_per_root: float
    longest_ms: float


def measure_memory(pending: int) -> Memory:
    """Fill a table with ``pending`` roots and see by how much the process grew."""
    table, source, longest_s = Table(SEED), np.random.default_rng(2), 0.0
    step = PER_RECORD * RECORDS_PER_BATCH
    warm = next(
        _batches(_pairs(source.integers(1, 2**63, step, np.uint64), np.ones(step, np.uint64)), is_init=True)
    )
    _fold_all(Table(SEED), [warm])
    before = _resident_bytes()
    for start in range(0, pending, step):
        roots = source.integers(1, 2**64 - 1, min(step, pending - start), np.uint64)
        pairs = _pairs(roots, np.ones(len(roots), np.uint64))
        longest_s = max(longest_s, _fold_all(table, list(_batches(pairs, is_init=True))))
    del roots, pairs
    gc.collect()
    return Memory((_resident_bytes() - before) / table.pending, longest_s * 1000)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
