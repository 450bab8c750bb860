"""Shows the demo's progress, from ``T.stats`` only: a bar on a terminal, else a line every few seconds."""

import time
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.log_reader import LogReader, reader_settings
from acktree.core.reports.stats import Report, decode_report
from acktree.wire.errors import MalformedRecord

COUNTS = ("completed", "replayed", "pending")
LINE_INTERVAL_S = 5.0


class ProgressView:
    """Reads the reports of the spout and shows them; ``counts`` are its newest figures."""

    def __init__(self, console: Console, bootstrap: str, stats_topic: str, lines: int) -> None:
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.reported_s = 0.0
        """When these counts were reported, by the wall clock."""
        self.first_record_s: float | None = None
        """When the first record was emitted, by the wall clock; the rate counts from then on."""
        self._console, self._lines = console, lines
        group = "acktree-demo-watch"
        self._consumer: Consumer = make_consumer(reader_settings(bootstrap, group, {}))
        self._place = stats_topic, 0
        self._log = LogReader(self._consumer, bootstrap, group, {})
        self._log.begin({self._place: 0})
        columns = (TextColumn("{task.percentage:>3.0f}%"), BarColumn(None), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console, expand=True, disable=not console.is_terminal)
        self._bar = self._progress.add_task(self._text(), total=lines)
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
        """Print a line above the bar."""
        self._progress.console.print(text, highlight=False)

    def tick(self, wait_s: float = 0.2) -> None:
        """Read the reports that have arrived and show them."""
        for log_range in self._log.read(1_000, wait_s):
            for message in log_range.records:
                self._read_report(message.value() or b"")
        if self._place not in self._log.places:
            self._log.begin({self._place: 0})
        self._progress.update(self._bar, completed=self.counts["completed"], description=self._text())
        if not self._console.is_terminal and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + LINE_INTERVAL_S
            self.say(f"{self.counts['completed'] / self._lines:4.0%}  {self._text()}")

    def committed(self, lines: int) -> None:
        """Show how many lines are committed, in place of what a process that may be killed reports."""
        self.counts["completed"] = lines
        self.reported_s = time.time()
        self.first_record_s = self.first_record_s or self.reported_s

    def _text(self) -> str:
        return progress_text(
            self.counts["completed"], self._lines, self.reported_s - (self.first_record_s or self.reported_s)
        )

    def _read_report(self, value: bytes) -> None:
        try:
            report: Report = decode_report(value)
        except MalformedRecord:
            return
        if report.role == "spout":
            self.counts = {name: int(report.values.get(name, 0)) for name in COUNTS}
            self.reported_s = report.time_ms / 1000


def progress_text(completed: int, lines: int, took_s: float) -> str:
    """Return how far the lines are, their rate and the time left at this rate.

    >>> progress_text(300_000, 1_000_000, 20.0)
    '300,000 of 1,000,000 lines, 15,000 lines/s, 47 s left'
    >>> progress_text(0, 1_000_000, 0.0)
    '0 of 1,000,000 lines'
    """
    done = f"{completed:,} of {lines:,} lines"
    if not completed or took_s <= 0:
        return done
    rate = completed / took_s
    return f"{done}, {rate:,.0f} lines/s, {(lines - completed) / rate:.0f} s left"
