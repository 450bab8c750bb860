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
from acktree.producers.function_bolt import BoltFunction, NoValue, To, bolt
from acktree.producers.idempotency import NoLastingKey, WriteOnce
from acktree.producers.payload_formats import (
    FormatUnavailable,
    Json,
    NoFormat,
    PayloadFormat,
    Text,
    Typed,
    Undecodable,
)
from acktree.producers.schema_registry import Avro, JsonSchema, Protobuf, UnknownSchema
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
    "Avro",
    "BadHandler",
    "BasicBolt",
    "BatchBolt",
    "BatchCollector",
    "Bolt",
    "BoltFunction",
    "Collector",
    "Context",
    "DeliveryFailed",
    "Emit",
    "EmitAfterAck",
    "Failure",
    "FormatUnavailable",
    "InvalidRetry",
    "InvalidTimestamp",
    "Json",
    "JsonSchema",
    "MissingExtra",
    "MissingKey",
    "MissingPartition",
    "Misuse",
    "NoFormat",
    "NoLastingKey",
    "NoValue",
    "NotInHand",
    "NotSerializable",
    "PayloadFormat",
    "Protobuf",
    "Reject",
    "ReservedHeader",
    "RetryLater",
    "SourceOrigin",
    "Spout",
    "SpoutContext",
    "SpoutEmitter",
    "SpoutWorker",
    "Text",
    "To",
    "TooLarge",
    "TransactionAborted",
    "Tuple",
    "TupleBatch",
    "Typed",
    "Undecodable",
    "UnknownComponent",
    "UnknownSchema",
    "Unwritable",
    "ValueSpout",
    "Worker",
    "WriteOnce",
    "WrongThread",
    "WrongTopic",
    "bolt",
]
