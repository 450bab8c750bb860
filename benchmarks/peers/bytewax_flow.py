"""The two hops in Bytewax, at least once: it commits nothing to Kafka, its recovery store has the offsets."""

import json
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main


class CountingPartition(StatelessSinkPartition):  # type: ignore[misc]
    """Counts in memory."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()

    def write_batch(self, items: list[bytes]) -> None:
        self.counts.update(items)


class CountingSink(DynamicSink):  # type: ignore[misc]
    """Has one count for each worker; there is one worker."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> CountingPartition:
        return CountingPartition()


def main(hop: str, bootstrap: str, lines: str, words: str, clients: dict[str, Any], folder: str) -> None:
    consumer = {name: str(value) for name, value in clients["consumer"].items()}
    producer = {name: str(value) for name, value in clients["producer"].items()}
    flow = Dataflow(hop)
    source = KafkaSource([bootstrap], [lines if hop == "split" else words], add_config=consumer)
    records = op.input("source", flow, source)
    if hop == "split":
        made = op.flat_map_batch(
            "split",
            records,
            lambda batch: [KafkaSinkMessage(word, word) for line in batch for word in line.value.split()],
        )
        op.output("words", made, KafkaSink([bootstrap], words, add_config=producer))
    else:
        values = op.flat_map_batch("values", records, lambda batch: [word.value for word in batch])
        op.output("counts", values, CountingSink())
    store = Path(folder)
    init_db_dir(store, 1)
    cli_main(
        flow,
        epoch_interval=timedelta(seconds=clients["commit_interval_s"]),
        recovery_config=RecoveryConfig(store),
    )


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
