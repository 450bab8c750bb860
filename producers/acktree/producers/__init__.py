"""The library for workers: bolts and spouts in Python, and their acks."""

from acktree.producers.arrow import ArrowBolt, ArrowCollector
from acktree.producers.batch import BatchCollector
from acktree.producers.bolt import AsyncBolt, BasicBolt, BatchBolt, Bolt, Context, Emit
from acktree.producers.collector import Collector
from acktree.producers.spout import Failure, Spout, SpoutEmitter, ValueSpout
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import SourceOrigin, Tuple

__all__ = [
    "ArrowBolt",
    "ArrowCollector",
    "AsyncBolt",
    "BasicBolt",
    "BatchBolt",
    "BatchCollector",
    "Bolt",
    "Collector",
    "Context",
    "Emit",
    "Failure",
    "SourceOrigin",
    "Spout",
    "SpoutEmitter",
    "Tuple",
    "TupleBatch",
    "ValueSpout",
]
