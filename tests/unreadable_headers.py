"""Writes records with a header whose name is not UTF-8, as clients in C may, and confluent-kafka does not."""

import ctypes
from typing import Any

from confluent_kafka import Producer

from acktree.spark.native.librdkafka import find_handle, librdkafka

TOPIC, PARTITION, VALUE, FLAGS, HEADER, END = 1, 3, 4, 7, 9, 0
"""Of rd_kafka_vtype_t."""
COPY = 2
BAD_NAME = b"caf\xe9"


def write_with_bad_name(bootstrap: str, topic: str, value: bytes, **headers: bytes) -> None:
    """Write a record to partition 0 with some headers, one of which has a name that is no UTF-8."""
    producer = Producer({"bootstrap.servers": bootstrap})
    name, size = ctypes.c_char_p, ctypes.c_size_t
    arguments: list[Any] = [TOPIC, name(topic.encode()), PARTITION, 0, VALUE, name(value), size(len(value))]
    for header, text in [(BAD_NAME, b"x"), *((each.encode(), text) for each, text in headers.items())]:
        arguments += [HEADER, name(header), name(text), size(len(text))]
    library: Any = librdkafka()
    producev = library["rd_kafka_producev"]
    handle = ctypes.c_void_p(find_handle(producer))
    assert producev(handle, *arguments, FLAGS, COPY, END) == 0
    assert producer.flush(30) == 0
