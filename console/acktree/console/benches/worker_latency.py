"""How long a tree takes from the moment its record was due to the spout's ``ack``, at a steady rate.

Open loop: a record that is sent late counts from when it should have been sent, so a stall is felt by all the
records it delays. Acker and bolt run in processes of their own with default settings, the spout in this one.
"""

import uuid
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from acktree.console.benches.worker_bolts import Metronome
from acktree.console.demo.children import ChildProcess
from acktree.producers.worker.spout_loop import SpoutWorker
from acktree.schemas.publish import apply_topology
from acktree.schemas.temporary_folder import temporary_folder
from acktree.schemas.topology import parse_topology

WARM_UP_S = 5.0
TOPOLOGY = """
name = "{name}"
[spouts.clock]
emits = ["{name}.in"]
[bolts.pass]
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


def measure_latency(bootstrap: str, rate_per_s: int, seconds: float, exactly_once: bool = False) -> Latency:
    """Run spout → bolt → acker → spout at a rate; the first WARM_UP_S seconds do not count."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    text = TOPOLOGY.format(name=name, exactly_once=str(exactly_once).lower())
    apply_topology(bootstrap, parse_topology(text), {})
    with ExitStack() as running:
        folder = running.enter_context(temporary_folder("bench"))
        at = ["--topology", name, "-b", bootstrap]
        for what in (["acker", "run"], ["bolt", "run", f"{Metronome.__module__}:Pass"]):
            child = ChildProcess(what[0], [*what, *at], folder, folder / what[0], {})
            child.start()
            running.callback(child.stop)
            child.wait_ready(lambda: None)
        spout = Metronome(rate_per_s, WARM_UP_S + seconds, lambda: worker.stop())
        worker = SpoutWorker(bootstrap, name, spout)
        worker.run()
    counted = spout.latency_s[round(WARM_UP_S * rate_per_s) :] * 1000
    p50, p99, maximum = np.nanpercentile(counted, (50, 99, 100))
    return Latency(p50, p99, maximum, len(counted), spout.failed)
