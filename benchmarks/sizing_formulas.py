"""The formulas of docs/sizing.md: CPU, bytes written and records in flight of a load. Pure.

What depends on how busy the processes are is a range: each constant has a least and a greatest value.
"""

from typing import NamedTuple

BATCH, MARKER, RECORD, HEADER = 61, 78, 9, 30
"""Bytes of a Kafka batch, of a transaction's end in a partition, around a record; of the tuple header."""
INIT, ACK, RESULT = 14, 36, 15
"""Bytes of a control record without entries; an ack's has a task of 19 characters."""
INIT_ENTRY, ACK_ENTRY, RESULT_ENTRY = 16, 16, 8
RESULT_COMMITS = 2
"""A spout task commits what results have changed so often a second, by itself."""
MAX_ROUNDS = 1_000
"""Of an acker, a second: with more records than that, several share a round."""
OWN = "Kafka's own"


class Load(NamedTuple):
    """Orders a second, each with ``items`` items, and the processes and partitions for them.

    ``sources`` are partitions of the topic of orders, ``partitions`` those of the topic of items.
    """

    orders: float
    items: int
    order_bytes: int
    item_bytes: int
    work_ms: float
    ackers: int
    sources: int
    partitions: int
    workers: int
    tasks: int = 1


class Constants(NamedTuple):
    """CPU seconds: of an idle process a second, or each; then what happens a second, bytes, and seconds."""

    process: float
    stage_commit: float
    stage_tuple: float
    worker_flush: float
    worker_tuple: float
    acker_round: float
    acker_record: float
    acker_entry: float
    commits: float
    flushes: float
    state: float
    own: float
    offset: float
    latency: float


LEAST = Constants(0.01, 1e-3, 4e-6, 2e-4, 4.4e-6, 1e-4, 1e-6, 5e-8, 5, 10, 100, 400, 100, 0.02)
MOST = Constants(0.03, 4e-3, 8e-6, 1e-3, 8e-6, 6e-4, 3e-6, 9e-8, 100, 200, 300, 1000, 200, 0.2)


class Counts(NamedTuple):
    """A second: orders, the stage's transactions, records of inits, acks and results, and entries of acks."""

    orders: float
    commits: float
    inits: float
    acks: float
    results: float
    entries: float


def counts(load: Load, of: Constants) -> Counts:
    """Return what is written at least, or at most."""
    is_most = of is MOST
    orders, ackers = load.orders, load.ackers if is_most else 1
    commits = min(orders, of.commits * load.tasks)
    inits = min(orders, commits * ackers)
    entries = orders * (load.items if is_most else min(load.items, load.workers))
    acks = min(entries, of.flushes * load.workers * ackers)
    return Counts(orders, commits, inits, acks, min(orders, inits + acks) if is_most else 0, entries)


def topic_bytes(load: Load, of: Counts) -> dict[str, float]:
    """Return the bytes a second of topics, by what is in them."""
    items = of.orders * load.items
    batches = min(items, of.commits * load.partitions)
    return {
        "bytes, tuples": items * (load.item_bytes + RECORD + HEADER) + batches * (BATCH + MARKER),
        "bytes, inits": of.orders * INIT_ENTRY + of.inits * (BATCH + MARKER + RECORD + INIT),
        "bytes, acks": of.entries * ACK_ENTRY + of.acks * (BATCH + RECORD + ACK),
        "bytes, results": of.orders * RESULT_ENTRY + of.results * (BATCH + RECORD + RESULT),
    }


def predict(load: Load, of: Constants) -> dict[str, float]:
    """Return each figure, a second, by the formulas of docs/sizing.md."""
    items, each = load.orders * load.items, counts(load, of)
    changes = slots = each.commits
    if of is MOST:
        changes += RESULT_COMMITS * load.tasks
        slots = min(2 * load.orders, changes * load.sources / load.tasks)
    flushes, worked = min(items, load.workers * of.flushes), load.work_ms / 1000 + of.worker_tuple
    records = each.inits + each.acks
    folded = min(records, MAX_ROUNDS) * of.acker_round + records * of.acker_record
    return {
        "CPU, stage": load.tasks * of.process + each.commits * of.stage_commit + items * of.stage_tuple,
        "CPU, bolt": load.workers * of.process + flushes * of.worker_flush + items * worked,
        "CPU, acker": of.process + folded + (load.orders + each.entries) * of.acker_entry,
        **topic_bytes(load, each),
        "bytes, state": changes * (BATCH + MARKER) + slots * of.state,
        f"bytes, {OWN}": each.commits * of.own + (2 * load.ackers + load.partitions) * of.offset,
        "orders in flight": load.orders * of.latency,
    }
