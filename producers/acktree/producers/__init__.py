"""The library for workers: bolts and spouts in Python, and their acks."""

from acktree.producers.bolt import AsyncBolt, BasicBolt, BatchBolt, Bolt, Context, Emit
from acktree.producers.collecting.arithmetic.pending import Message
from acktree.producers.collecting.batch import BatchCollector
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.spout_emitter import SpoutEmitter
from acktree.producers.columns import Child
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
    NotDeserializable,
    NotInHand,
    NotSerializable,
    RegistryUnavailable,
    Reject,
    ReservedHeader,
    RetryLater,
    TooLarge,
    TransactionAborted,
    UnknownComponent,
    UnknownSchema,
    Unwritable,
    WrongThread,
    WrongTopic,
)
from acktree.producers.functions import bolt as bolt
from acktree.producers.functions import stage as stage
from acktree.producers.idempotency import NoLastingKey, WriteOnce
from acktree.producers.serdes.schema_registry import Avro, JsonSchema, Protobuf
from acktree.producers.serdes.serde import Json, Raw, Serde, Text
from acktree.producers.spout import Failure, Spout, SpoutContext
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import SourceOrigin, Tuple
from acktree.producers.worker.loop import Worker
from acktree.wire.errors import AcktreeError

__all__ = [
    "AckedTwice",
    "AcktreeError",
    "AlreadyPending",
    "AsyncBolt",
    "Avro",
    "BadHandler",
    "BasicBolt",
    "BatchBolt",
    "BatchCollector",
    "Bolt",
    "Child",
    "Collector",
    "Context",
    "DeliveryFailed",
    "Emit",
    "EmitAfterAck",
    "Failure",
    "InvalidRetry",
    "InvalidTimestamp",
    "Json",
    "JsonSchema",
    "Message",
    "MissingExtra",
    "MissingKey",
    "MissingPartition",
    "Misuse",
    "NoLastingKey",
    "NotDeserializable",
    "NotInHand",
    "NotSerializable",
    "Protobuf",
    "Raw",
    "RegistryUnavailable",
    "Reject",
    "ReservedHeader",
    "RetryLater",
    "Serde",
    "SourceOrigin",
    "Spout",
    "SpoutContext",
    "SpoutEmitter",
    "SpoutWorker",
    "Text",
    "TooLarge",
    "TransactionAborted",
    "Tuple",
    "TupleBatch",
    "UnknownComponent",
    "UnknownSchema",
    "Unwritable",
    "Worker",
    "WriteOnce",
    "WrongThread",
    "WrongTopic",
    "bolt",
    "stage",
]
