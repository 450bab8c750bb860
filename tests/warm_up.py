"""Compiles all loops, and keeps the machine code on disk for the processes that the tests start."""

from acktree.acker import warm_up as acker
from acktree.producers import record_batches
from acktree.producers import warm_up as producers
from acktree.spark import anchor_loop

for part in (acker, producers, record_batches, anchor_loop):
    part.warm_up()
