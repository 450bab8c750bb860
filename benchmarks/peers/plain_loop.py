"""The two hops as plain confluent-kafka loops: positions are committed by a clock, done or not."""

import json
import sys
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, Producer

MAX_RECORDS = 10_000


def main(hop: str, bootstrap: str, lines: str, words: str, clients: dict[str, Any], **_: str) -> None:
    topic = lines if hop == "split" else words
    own = {"bootstrap.servers": bootstrap, "group.id": f"{words}.{hop}", "enable.auto.commit": True}
    consumer = Consumer({**clients["consumer"], **own})
    consumer.subscribe([topic])
    if hop == "split":
        split(consumer, Producer({**clients["producer"], "bootstrap.servers": bootstrap}), words)
    else:
        count(consumer)


def split(consumer: Consumer, producer: Producer, words: str) -> None:
    while True:
        for line in consumer.consume(MAX_RECORDS, 0) or consumer.consume(1, 0.1):
            for word in (line.value() or b"").split():
                while True:
                    try:
                        producer.produce(words, word, word)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.poll(0)


def count(consumer: Consumer) -> None:
    counts: Counter[bytes | None] = Counter()
    while True:
        batch = consumer.consume(MAX_RECORDS, 0) or consumer.consume(1, 0.1)
        counts.update([word.value() for word in batch])


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
