"""What a worker links against: bolts, spouts, and the acks that go with them."""

from acktree.producers.batch import BatchCollector
from acktree.producers.bolt import BasicBolt, BatchBolt, Bolt, Context, Emit
from acktree.producers.collector import Collector
from acktree.producers.spout import Spout, SpoutEmitter
from acktree.producers.tuples import SourceOrigin, Tuple

__all__ = [
    "BasicBolt",
    "BatchBolt",
    "BatchCollector",
    "Bolt",
    "Collector",
    "Context",
    "Emit",
    "SourceOrigin",
    "Spout",
    "SpoutEmitter",
    "Tuple",
]
