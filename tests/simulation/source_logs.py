"""Searches what may happen to the log that a stage in Python reads: damage, retention, a lost end, gaps.

    python tests/simulation/source_logs.py 17        # the events of seed 17

A seed is a topology of one stage and one bolt, random records, and a random plan of faults of the source log
and of what reads it. In the end everything is healed and must be done in a bounded time. A promise is broken
where a record that stands in the log below the committed offset was never executed; where damaged or removed
records were passed without a log line and a count, or passed at all although ``fail_on_data_loss`` is true;
and where a stage stops by anything but a DataLoss that names the partition of a loss.

Invariant: a lost end can be seen. One that a new leader lacks shows by the leader epochs, whoever reads or
starts, and whatever was written since. Where the epoch stays, a log that was written again past a reader's
position between two of its fetches looks as if nothing had happened. So nobody writes to such a log before
the reader of the stage has said so, or has fetched it for longer than it takes to tell a lost end from a
leader that lags behind. Nor does a process die in the moment after that.
"""

import logging
import os
import random
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from acktree.core import world
from acktree.core.kafka.log_reader import LAG_S, Found, LogRange
from acktree.core.topology.file import Topology, parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt, RetryLater
from acktree.producers.spouts.driver.sources.log_bounds import DataLoss
from acktree.producers.stages import stage_task
from acktree.producers.stages.source_reader import SourceReader
from acktree.testing import TopologyTester
from acktree.testing.kafka.broker.log import PartitionLog
from acktree.testing.parts import BOOTSTRAP
from acktree.testing.virtual.errors import TookTooLong
from simulation.checker import BrokenPromise
from simulation.fault_plan import Fault, write_transaction

FAULTY_S = 40.0
"""For how long faults strike, in virtual time."""
STEP_S = 0.25
"""How often the search looks whether a lost end can have been seen."""
SEEN_S = LAG_S + 1.0
"""For how long a reader has to fetch at most to see a lost end."""
ACTED_S = 6.0
"""How long a stage takes at most to act on it."""
DONE_S = 700.0
"""Within what everything must be done, once all is healed: a group waits up to 300 s for a member that died
while it joined."""
REPORTED_S = 12.0
"""How long counters take at most to be reported."""

LOST_LINES = (
    re.compile(r"lines/(?P<partition>\d+): \d+ offset\(s\) from (?P<first>\d+) to (?P<last>\d+) are lost"),
    re.compile(r"lines/(?P<partition>\d+): offsets (?P<first>\d+) to (?P<last>\d+) are damaged"),
)
LOST_END = re.compile(r"lines/\d+ end(?:s|ed) at offset (\d+)")
NAMED_LOSS = re.compile(r"lines/(\d+)\b.*\boffsets? \d+", re.DOTALL)


@dataclass(eq=False)
class _Sent:
    """A record, and what became of it in the log."""

    partition: int
    offset: int
    value: bytes
    at_s: float
    fate: str = ""


@dataclass(eq=False)
class _LostEnd:
    """The end that a log has lost, and that the stage may not have seen yet."""

    wait_s: float
    """How long it takes until it is written to again, once that was seen."""
    fetched_s: float = 0.0
    """For how long the running process has fetched it."""
    seen_s: float = inf


@dataclass
class SourceLogsRun:
    """What came of a seed."""

    seed: int
    error: Exception | None = None
    counters: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)


class _Lines(logging.Handler):
    """Keeps what the product logs, each line with its virtual time."""

    def __init__(self, keep: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._keep = keep

    def emit(self, record: logging.LogRecord) -> None:
        self._keep(record.getMessage())


class Search:
    """One seed: its topology, its faults, and what it knows of each record."""

    def __init__(self, seed: int, outcome: SourceLogsRun) -> None:
        self.draw = random.Random(f"source logs {seed}")
        self.is_strict = seed % 4 == 3
        self.partitions = self.draw.choice([2, 3])
        self._max_pending = self.draw.choice([10, 100, 100_000])
        self.base_s = self.draw.choice([0.0, 0.003, 0.1])
        self.is_healed = False
        self.delayed: set[bytes] = set()
        self._outcome = outcome
        self._sent: list[_Sent] = []
        self._lost_lines: list[tuple[float, int, int, int]] = []
        """When it was logged, partition, first and last offset."""
        self._hit: set[int] = set()
        """The partitions that have lost something."""
        self._backlog: dict[int, list[int]] = {}
        """How many records wait for the end of a partition that may not be written, burst by burst."""
        self._unseen: dict[int, _LostEnd] = {}
        self._seen_s = self._read_s = -ACTED_S
        """When a log that had lost its end was written to again, and when the stage has read."""
        self._process: Any = None
        self._readers: set[SourceReader] = set()
        """That of each run of the task, whose counters begin at zero."""
        self._stopped_until_s = 0.0
        self._is_stopping = False
        """Whether the stage has found a lost end and is going to stop: once its code has returned."""
        given = {"split": _stage_of(self)}, {"count": _Counts}
        self.t = TopologyTester(
            self._topology(), spouts=given[0], bolts=given[1], partitions=self.partitions, seed=seed
        )

    def _topology(self) -> Topology:
        spark = "" if self.is_strict else "spark = {fail_on_data_loss = false}"
        return parse_topology(f"""
            name = "t"
            [spouts.split]
            topics = ["lines"]
            emits = ["words"]
            retry_initial_s = 1
            max_pending = {self._max_pending}
            {spark}
            [bolts.count]
            reads = ["words"]
        """)

    # What happens, step by step.

    def run(self) -> None:
        """Run it. Raises BrokenPromise, and what ended a process."""
        with _watched(self.see), _logged(self._keep_line), self.t:
            for at_s, strike in self._plan():
                self._advance(at_s - self.t.now_s)
                strike(self)
            self._advance(FAULTY_S - self.t.now_s)
            self._heal()
            try:
                while self._unseen:
                    self._advance(STEP_S)
                    if self.t.now_s > FAULTY_S + DONE_S:
                        raise TookTooLong("a lost end could not be seen")
                self._patiently(lambda: self.t.run_until_done(DONE_S))
            except TookTooLong as late:
                raise BrokenPromise(f"not done within {DONE_S:g} s: {late}") from late
            self._advance(REPORTED_S)
            self._check(is_end=True)

    def _plan(self) -> list[tuple[float, Callable[["Search"], None]]]:
        draw = self.draw
        kinds = [strike for strike in FAULTS if draw.random() < draw.choice([0.2, 0.6])]
        strikes = [strike for strike in kinds for _ in range(draw.choice([1, 1, 2, 4]))]
        strikes += [_send] * draw.choice([10, 20, 40])
        return sorted(((draw.uniform(0.0, FAULTY_S), strike) for strike in strikes), key=lambda each: each[0])

    def _heal(self) -> None:
        self.is_healed = True
        self.t.cluster.leaderless = set()
        self.event("everything is healed")

    def _advance(self, seconds: float) -> None:
        end_s = self.t.now_s + seconds
        while (left_s := end_s - self.t.now_s) > 1e-6:
            seconds = min(left_s, STEP_S)
            self._patiently(lambda: self.t.run_for(seconds))  # noqa: B023
            self._follow_lost_ends(seconds)

    def _patiently(self, run: Callable[[], None]) -> None:
        """Run, over the stops that the stage is right to make."""
        while True:
            try:
                return run()
            except DataLoss as stop:
                self._start_without_the_option(stop)

    def _start_without_the_option(self, stop: DataLoss) -> None:
        self.event(f"stopped: {stop}")
        found = NAMED_LOSS.search(str(stop))
        if not self.is_strict or found is None or int(found[1]) not in self._hit:
            raise BrokenPromise(f"a stop without a cause, or that does not name it: {stop}") from stop
        self._outcome.counters["stopped by DataLoss"] += 1
        partition, lost_end = int(found[1]), LOST_END.match(str(stop))
        self._check(without=partition if lost_end else None)
        self.is_strict = self._is_stopping = False
        service = self.t.service("split")
        service.process = None  # its supervisor waits for the operator
        self.t._as_operator(lambda: apply_topology(BOOTSTRAP, self._topology(), {}))
        committed = self.t.committed("lines", partition)
        if lost_end and " but group " in str(stop) and committed is not None:
            self.t.rewind("lines", partition, min(committed, int(lost_end[1])))
        self.t._services.start(service)

    # The source log.

    def log(self, partition: int) -> PartitionLog:
        """Return the log of a source partition."""
        return self.t.cluster.topics["lines"].partitions[partition]

    def event(self, text: str) -> None:
        """Keep what happens, for who looks for a cause."""
        self._outcome.events.append(f"{self.t.now_s:8.3f} {text}")

    def count(self, name: str) -> None:
        """Count something that a set of seeds has to have."""
        self._outcome.counters[name] += 1

    def may_write(self, partition: int) -> bool:
        """Return whether nobody has to see first that a log has lost its end."""
        return partition not in self._unseen

    def send(self, partition: int, count: int) -> None:
        """Append records, or let them wait."""
        if not self.may_write(partition):
            self._backlog.setdefault(partition, []).append(count)
            return
        self.event(f"{count} record(s) from lines/{partition}@{self.log(partition).end_offset}")
        for _ in range(count):
            value = b"%d" % len(self._sent)
            offset = self.t.send("lines", value, partition=partition).offset
            self._sent.append(_Sent(partition, offset, value, self.t.now_s))

    def lose(self, partition: int, fate: str, first: int, end: int) -> None:
        """Record that [first, end) of a log is lost."""
        self._hit.add(partition)
        self.count(fate)
        self.event(f"lines/{partition}: {first} to {end - 1} {fate}")
        for each in self._sent:
            stands = each.partition == partition and each.fate in ("", "damaged")
            if stands and first <= each.offset < end:
                each.fate = fate

    def lose_end(self, partition: int, first: int) -> None:
        """Lose a log from an offset on; without a new leader nothing is written before that can be seen."""
        log = self.log(partition)
        self.lose(partition, "truncated", first, log.end_offset)
        if by_new_leader := self.draw.random() < 0.6:
            self.count("written again")
        log.truncate(first, by_new_leader=by_new_leader)
        if by_new_leader and partition not in self._unseen:
            return
        self._unseen[partition] = _LostEnd(self.draw.choice([0.0, 1.0, self.draw.uniform(0.0, 8.0)]))

    def _follow_lost_ends(self, seconds: float) -> None:
        """Let what waits be written where a lost end was seen, or could have been."""
        service, now_s = self.t.service("split"), self.t.now_s
        is_new, self._process = service.process is not self._process, service.process
        runs = service.is_running and now_s > self._stopped_until_s and now_s - self._read_s < 2 * STEP_S
        for partition, lost in list(self._unseen.items()):
            if is_new:
                lost.fetched_s, lost.seen_s = 0.0, inf
            elif runs and self._is_fetched(partition):
                lost.fetched_s += seconds
            if lost.fetched_s > SEEN_S:
                lost.seen_s = min(lost.seen_s, now_s)
            if now_s >= lost.seen_s + lost.wait_s:
                self._seen_s = now_s
                del self._unseen[partition]
                for count in self._backlog.pop(partition, ()):
                    self.send(partition, count)

    def see(self, reader: SourceReader, troubles: list[LogRange]) -> None:
        """Record that the stage has read, and what it could not read."""
        self._readers.add(reader)
        self._read_s = self.t.now_s
        for trouble in troubles:
            lost = self._unseen.get(trouble.place[1])
            if trouble.found is Found.FELL and lost is not None:
                self.event(f"{trouble.text}")
                lost.seen_s = min(lost.seen_s, self._read_s)
                self._is_stopping = self.is_strict

    @property
    def may_die(self) -> bool:
        """Whether no process may know of a lost end that the next one could not see."""
        is_known = any(lost.seen_s < inf for lost in self._unseen.values()) or self._is_stopping
        return not is_known and self.t.now_s > self._seen_s + ACTED_S

    def stop(self, seconds: float) -> None:
        """Give the stage no processor time."""
        self._stopped_until_s = max(self._stopped_until_s, self.t.now_s + seconds)
        self.t.pause("split", seconds)

    def _is_fetched(self, partition: int) -> bool:
        """Return whether the stage's client asks for a partition, and a broker answers."""
        place = "lines", partition
        if not self.t.cluster.is_up or self.t.cluster.is_leaderless(*place):
            return False
        readers = [task._reader._log._positions for task in self.t.service("split").runner._made()]
        return any(not each[place].is_paused if place in each else True for each in readers)

    # The promises.

    def _keep_line(self, line: str) -> None:
        self.event(f"log: {line}")
        for pattern in LOST_LINES:
            if found := pattern.match(line):
                partition, first, last = (int(found[name]) for name in ("partition", "first", "last"))
                self._lost_lines.append((self.t.now_s, partition, first, last))

    def _check(self, *, is_end: bool = False, without: int | None = None) -> None:
        """Raise BrokenPromise if what is committed was neither executed nor said to be lost.

        ``without``: a partition of which a stop says that other records may stand below its offset.
        """
        words = {record.value for record in self.t.records("words")}
        committed = [self.t.committed("lines", partition) or 0 for partition in range(self.partitions)]
        for partition, offset in enumerate(committed):
            log = self.log(partition)
            if is_end and offset > log.end_offset:
                raise BrokenPromise(f"lines/{partition} is committed to {offset}, behind its end")
            for record in log.read(log.start_offset, True):
                is_text = not record.is_control and not record.is_damaged
                is_new = is_text and record.offset < offset and record.value not in words
                if is_new and partition != without:
                    raise BrokenPromise(f"committed, never executed: lines/{partition}/{record.offset}")
        passed = [
            each
            for each in self._sent
            if each.fate in ("damaged", "removed")
            and each.offset < committed[each.partition]
            and each.value not in words
        ]
        for each in passed:
            place = f"lines/{each.partition}/{each.offset}"
            if self.is_strict:
                raise BrokenPromise(f"passed although fail_on_data_loss is true: {place}")
            if not any(
                at_s >= each.at_s and partition == each.partition and first <= each.offset <= last
                for at_s, partition, first, last in self._lost_lines
            ):
                raise BrokenPromise(f"{each.fate} and passed without a log line: {place}")
        self._outcome.counters["passed and said so"] += len(passed)
        service = self.t.service("split")
        if is_end and service.starts == 1 and len(self._readers) == 1:
            newest = service.runner.reports.newest
            if (lost := sum(int(report.values["lost"]) for report in newest)) < len(passed):
                raise BrokenPromise(f"{len(passed)} records were passed, and {lost} counted as lost")


class _Counts(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        pass


def _stage_of(search: Search) -> type[BasicBolt]:
    """Return a stage that copies lines: some take long, and some ask for another attempt."""
    slow_s = search.draw.choice([0.0, 10.0, 25.0])

    class Copies(BasicBolt):
        def execute(self, tup: Any, emit: Any) -> None:
            drawn = zlib.crc32(tup.value)
            if not search.is_healed:
                world.sleep(slow_s if drawn % 30 == 0 else search.base_s)
            if drawn % 17 == 0 and tup.value not in search.delayed:
                search.delayed.add(tup.value)
                raise RetryLater(1 + drawn % 5)
            emit(tup.value)

    return Copies


# What may happen.


def _send(search: Search, partition: int | None = None) -> None:
    drawn = search.draw.randrange(search.partitions)
    search.send(drawn if partition is None else partition, search.draw.choice([1, 5, 20, 60]))


def _damage(search: Search) -> None:
    partition, at = _some_record(search)
    if at is not None:
        search.log(partition).damage(at)
        search.lose(partition, "damaged", at, at + 1)


def _remove(search: Search) -> None:
    """Retention overtakes the stage, or only what it has done."""
    partition, at = _some_record(search)
    log = search.log(partition)
    if at is not None and not log.open:
        search.lose(partition, "removed", log.start_offset, at + 1)
        log.delete_before(at + 1)


def _truncate(search: Search) -> None:
    partition, at = _some_record(search)
    if at is not None:
        search.lose_end(partition, at)
        _send(search, partition)


def _some_record(search: Search) -> tuple[int, int | None]:
    """Return a partition and the offset of one of its records: near the end, in hand, or any."""
    partition = search.draw.randrange(search.partitions)
    there = [record.offset for record in search.log(partition).records if not record.is_control]
    if not there:
        return partition, None
    committed = search.t.committed("lines", partition) or 0
    in_hand = [at for at in there if at >= committed][:20]
    return partition, search.draw.choice(search.draw.choice([there[-5:], in_hand or there, there]))


def _gap(search: Search) -> None:
    partition = search.draw.randrange(search.partitions)
    if search.may_write(partition):
        search.log(partition).end_offset += search.draw.choice([1, 30, 3_000])
        search.event(f"lines/{partition}: a gap up to {search.log(partition).end_offset}")


def _write_in_a_transaction(search: Search) -> None:
    partition = search.draw.randrange(search.partitions)
    if search.may_write(partition):
        drawn: Any = Fault(
            "another transaction",
            at_s=search.t.now_s,
            number=search.draw.randrange(10),
            seconds=search.draw.choice([0.05, 5.0]),
        )
        write_transaction(search.t, drawn, search.log(partition), b"of a stranger at %.6f" % search.t.now_s)  # type: ignore[arg-type]
        search.event(f"lines/{partition}: a stranger's transaction")


def _lose_leader(search: Search) -> None:
    place = "lines", search.draw.randrange(search.partitions)
    away = search.t.cluster.leaderless
    away.add(place)
    search.t.kernel.call_after(search.draw.choice([0.5, 5.0, 20.0]), lambda: away.discard(place))
    search.event(f"{place} has no leader")


def _broker_away(search: Search) -> None:
    if not search.may_die:
        return
    seconds = search.draw.choice([0.5, 8.0])
    search.event(f"the broker is away for {seconds} s")
    search.t.broker_away(seconds)


def _kill(search: Search) -> None:
    if not search.may_die:
        return
    search.event("kill")
    search.t.kill("split", restart_after_s=search.draw.choice([0.1, 3.0, 12.0]))


def _pause(search: Search) -> None:
    if not search.may_die:
        return
    seconds = search.draw.choice([0.5, 9.0])
    search.event(f"the stage is stopped for {seconds} s")
    search.stop(seconds)


def _rewind(search: Search) -> None:
    """An operator sets the group's offset back, with the stage stopped or running."""
    if not search.may_die:
        return
    if search.draw.random() < 0.5:
        _kill(search)
    partition = search.draw.randrange(search.partitions)
    log, committed = search.log(partition), search.t.committed("lines", partition)
    if committed is not None and log.start_offset <= min(committed, log.end_offset):
        to = search.draw.randint(log.start_offset, min(committed, log.end_offset))
        search.event(f"lines/{partition}: set back to {to}")
        search.t.rewind("lines", partition, to)


FAULTS: tuple[Callable[[Search], None], ...] = (
    _damage,
    _remove,
    _truncate,
    _truncate,
    _truncate,
    _gap,
    _write_in_a_transaction,
    _lose_leader,
    _broker_away,
    _kill,
    _pause,
    _rewind,
)


@contextmanager
def _watched(see: Callable[[SourceReader, list[LogRange]], None]) -> Iterator[None]:
    """Call ``see`` with what each read of a stage could not read."""
    read = SourceReader.read

    def watched(reader: SourceReader, wait_s: float, held_bytes: int) -> list[LogRange]:
        troubles = read(reader, wait_s, held_bytes)
        see(reader, troubles)
        return troubles

    with mock.patch.object(SourceReader, "read", watched):
        yield


@contextmanager
def _logged(keep: Callable[[str], None]) -> Iterator[None]:
    """Keep what the spout logs, also where a run is quiet, and print none of it."""
    disabled, names, lines = logging.root.manager.disable, ("acktree.spout", "acktree.spark"), _Lines(keep)
    loggers = [logging.getLogger(name) for name in names]
    propagate = [each.propagate for each in loggers]
    logging.disable(logging.NOTSET)
    for each in loggers:
        each.addHandler(lines)
        each.propagate = False
    try:
        yield
    finally:
        logging.disable(disabled)
        for each, before in zip(loggers, propagate, strict=True):
            each.removeHandler(lines)
            each.propagate = before


def run_seed(seed: int) -> SourceLogsRun:
    """Run a seed, with small limits of what is read and planned ahead."""
    outcome = SourceLogsRun(seed)
    draw = random.Random(f"limits {seed}")
    limits = (
        mock.patch.object(SourceReader, "max_records", draw.choice([10, 100, 5_000])),
        mock.patch.object(SourceReader, "max_bytes", draw.choice([20_000, 1 << 20])),
        mock.patch.object(stage_task, "MAX_PLANNED", draw.choice([10, 200, 2_000])),
        mock.patch.object(stage_task, "IDLE_WAIT_S", 0.2),
        mock.patch.object(stage_task, "BUSY_WAIT_S", 0.05),
    )
    with limits[0], limits[1], limits[2], limits[3], limits[4]:
        try:
            Search(seed, outcome).run()
        except Exception as error:
            outcome.error = error
    return outcome


def main() -> int:
    """Print the events of seeds."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # as in ``run.py``
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    logging.getLogger().addHandler(logging.NullHandler())
    status = 0
    for seed in map(int, sys.argv[1:]):
        outcome = run_seed(seed)
        print(*outcome.events, sep="\n")
        if outcome.error is not None:
            print(f"seed {seed}: {type(outcome.error).__name__}: {outcome.error}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
