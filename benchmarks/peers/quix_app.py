"""The two hops in Quix Streams, at least once: a checkpoint flushes the producer, then commits."""

import json
import sys
from collections import Counter
from typing import Any

from quixstreams import Application


def main(hop: str, bootstrap: str, lines: str, words: str, clients: dict[str, Any], folder: str) -> None:
    app = Application(
        broker_address=bootstrap,
        consumer_group=f"{words}.{hop}",
        commit_interval=clients["commit_interval_s"],
        auto_offset_reset="earliest",
        consumer_extra_config=clients["consumer"],
        producer_extra_config=clients["producer"],
        auto_create_topics=False,
        state_dir=folder,
    )
    read = app.topic(lines if hop == "split" else words, value_deserializer="bytes")
    records = app.dataframe(read)
    if hop == "split":
        written = app.topic(words, value_serializer="bytes", key_serializer="bytes")
        records = records.apply(lambda line: line.split(), expand=True)
        records.to_topic(written, key=lambda word: word)
    else:
        counts: Counter[bytes] = Counter()

        def count(word: bytes) -> None:
            counts[word] += 1

        records.update(count)
    app.run()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
