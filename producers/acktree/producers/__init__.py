"""The library for workers: bolts and spouts in Python, and their acks."""

from acktree.producers.arrow import ArrowBolt, ArrowCollector
from acktree.producers.batch import BatchCollector
from acktree.producers.bolt import AsyncBolt, BasicBolt, BatchBolt, Bolt, Context, Emit
from acktree.producers.collector import Collector
from acktree.producers.errors import (
    AckedTwice,
    AlreadyPending,
    BadHandler,
    DeliveryFailed,
    EmitAfterAck,
    InvalidRetry,
    InvalidTimestamp,
    MissingExtra,
    MissingKey,
    MissingPartition,
    Misuse,
    NotInHand,
    NotSerializable,
    Reject,
    ReservedHeader,
    RetryLater,
    TooLarge,
    TransactionAborted,
    UnknownComponent,
    Unwritable,
    WrongThread,
    WrongTopic,
)
from acktree.producers.idempotency import NoLastingKey, WriteOnce
from acktree.producers.spout import Failure, Spout, SpoutContext, SpoutEmitter, ValueSpout
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import SourceOrigin, Tuple
from acktree.producers.worker.loop import Worker
from acktree.producers.worker.spout_loop import SpoutWorker
from acktree.schemas.errors import AcktreeError

__all__ = [
    "AckedTwice",
    "AcktreeError",
    "AlreadyPending",
    "ArrowBolt",
    "ArrowCollector",
    "AsyncBolt",
    "BadHandler",
    "BasicBolt",
    "BatchBolt",
    "BatchCollector",
    "Bolt",
    "Collector",
    "Context",
    "DeliveryFailed",
    "Emit",
    "EmitAfterAck",
    "Failure",
    "InvalidRetry",
    "InvalidTimestamp",
    "MissingExtra",
    "MissingKey",
    "MissingPartition",
    "Misuse",
    "NoLastingKey",
    "NotInHand",
    "NotSerializable",
    "Reject",
    "ReservedHeader",
    "RetryLater",
    "SourceOrigin",
    "Spout",
    "SpoutContext",
    "SpoutEmitter",
    "SpoutWorker",
    "TooLarge",
    "TransactionAborted",
    "Tuple",
    "TupleBatch",
    "UnknownComponent",
    "Unwritable",
    "ValueSpout",
    "Worker",
    "WriteOnce",
    "WrongThread",
    "WrongTopic",
]
