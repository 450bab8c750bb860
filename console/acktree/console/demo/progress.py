"""The demo's progress: bars on a terminal, a line every few seconds elsewhere; fed from ``T.stats`` only."""

import time
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from acktree.schemas.client_settings import consumer_settings
from acktree.schemas.clients import make_consumer
from acktree.schemas.errors import MalformedRecord
from acktree.schemas.stats import Report, decode_report

BARS = ("emitted", "completed", "replayed", "pending")
LINE_INTERVAL_S = 5.0


class ProgressView:
    """Reads the reports of the spout and shows them; ``counts`` are its newest figures."""

    def __init__(self, console: Console, bootstrap: str, stats_topic: str, lines: int, failures: int) -> None:
        self.counts: dict[str, int] = dict.fromkeys(BARS, 0)
        self._console = console
        self._consumer: Consumer = make_consumer(consumer_settings(bootstrap, "acktree-demo-watch", {}))
        self._consumer.assign([TopicPartition(stats_topic, 0, 0)])
        columns = (
            TextColumn("{task.description:>9}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        totals = {"emitted": lines, "completed": lines, "replayed": failures, "pending": lines}
        self._bars = {name: self._progress.add_task(name, total=totals[name]) for name in BARS}
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        self._consumer.close()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text, highlight=False)

    def tick(self, wait_s: float = 0.2) -> None:
        """Read the reports that have arrived and show them."""
        for message in self._consumer.consume(1_000, wait_s):
            if message.error() is None:
                self._read_report(message.value() or b"")
        for name, bar in self._bars.items():
            self._progress.update(bar, completed=self.counts[name])
        if not self._console.is_terminal and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + LINE_INTERVAL_S
            self.say("  ".join(f"{name} {self.counts[name]:,}" for name in BARS))

    def _read_report(self, value: bytes) -> None:
        try:
            report: Report = decode_report(value)
        except MalformedRecord:
            return
        if report.role == "spout":
            self.counts = {name: int(report.values.get(name, 0)) for name in BARS}
