"""The two hops in FastStream, at least once: batches of records, each committed when it is done."""

import asyncio
import json
import logging
import sys
from collections import Counter
from typing import Any

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker, KafkaPublishMessage

MAX_RECORDS = 1_000
POLL_S = 0.02


async def as_they_are(message: Any) -> Any:
    """Return the bytes; the default looks for JSON first."""
    return message.body


def main(hop: str, bootstrap: str, lines: str, words: str, clients: dict[str, Any], **_: str) -> None:
    broker = KafkaBroker(
        bootstrap,
        config={**clients["consumer"], **clients["producer"]},
        apply_types=False,
        log_level=logging.DEBUG,
        decoder=as_they_are,
        linger_ms=clients["producer"]["linger.ms"],
    )
    counts: Counter[bytes] = Counter()

    async def split(batch: list[bytes]) -> None:
        made = [KafkaPublishMessage(word, key=word) for line in batch for word in line.split()]
        if made:
            await broker.publish_batch(*made, topic=words)

    async def count(batch: list[bytes]) -> None:
        counts.update(batch)

    subscriber = broker.subscriber(
        lines if hop == "split" else words,
        group_id=f"{words}.{hop}",
        batch=True,
        max_records=MAX_RECORDS,
        polling_interval=POLL_S,
        ack_policy=AckPolicy.ACK,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    subscriber(split if hop == "split" else count)
    asyncio.run(FastStream(broker).run())


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
