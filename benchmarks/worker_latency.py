"""How long a tree takes from the moment its record was due to the spout's ``ack``, at a steady rate.

Open loop: a record that is sent late counts from when it should have been sent, so a stall is felt by all the
records it delays. Acker and bolt run in separate processes with default settings, the spout in this one.
"""

from typing import NamedTuple

import numpy as np

from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.worker.gc_tuning import collect_rarely
from harness import Cluster, Table, new_name
from jobs import Metronome

WARM_UP_S = 5.0
TOPOLOGY = """
name = "{name}"
[spouts.clock]
emits = ["{name}.in"]
[bolts.ack]
reads = ["{name}.in"]
exactly_once = {exactly_once}
"""


class Latency(NamedTuple):
    """Milliseconds; ``failed`` is how many records failed or timed out."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    records: int
    failed: int


def print_latencies(kafka: Cluster, rate_per_s: int, seconds: float, rounds: int) -> None:
    """Measure at least once and exactly once, in turn."""
    collect_rarely()
    columns = "p50, ms", "p99, ms", "max, ms", "records", "failed"
    table = Table(f"tree latency, {rate_per_s:,} records/s", *columns)
    for _ in range(rounds):
        for name, exactly_once in (("at least once", False), ("exactly once", True)):
            table.row(name, *measure_latency(kafka, rate_per_s, seconds, exactly_once))


def measure_latency(
    kafka: Cluster, rate_per_s: int, seconds: float, exactly_once: bool = False, warm_up_s: float = WARM_UP_S
) -> Latency:
    """Run spout → bolt → acker → spout at a rate; the first ``warm_up_s`` do not count."""
    text = TOPOLOGY.format(name=new_name(), exactly_once=str(exactly_once).lower())
    with kafka.deployment(text) as deployment:
        deployment.start("acker", "run")
        deployment.start("bolt", "run", "jobs:Ack", "--bolt", "ack")
        spout = Metronome(rate_per_s, warm_up_s + seconds, lambda: worker.stop())
        worker = SpoutWorker(kafka.bootstrap, deployment.name, spout)
        worker.run()
    counted = spout.latency_s[round(warm_up_s * rate_per_s) :] * 1000
    p50, p99, maximum = np.nanpercentile(counted, (50, 99, 100)).tolist()
    return Latency(p50, p99, maximum, len(counted), spout.failed)
