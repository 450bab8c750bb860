"""The loop of a task of a stage in Python: plan source records, run the function, write what comes of them.

Invariant: tuples, inits and the state in which their source record is written are one transaction. No user
code runs while it is open. A record that is planned and not written is planned again by a restart; one that
fails in the stage never reaches an acker: the ledger records the failure immediately.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import numpy as np
from pyroaring import BitMap64

from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.log_reader import Found, LogRange
from acktree.core.kafka.outages import log_retry
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.stats import Report
from acktree.core.topology.file import BoltTable, SpoutTable
from acktree.producers.bolt import AnyBolt, Context
from acktree.producers.collecting.arithmetic.packing import inits_of_tasks
from acktree.producers.collecting.arithmetic.transaction_limit import CHECKED_BYTES, Passage, TransactionLimit
from acktree.producers.collecting.held_output import size_of
from acktree.producers.collecting.transactional import TransactionalCollector
from acktree.producers.columns import NO_TIMESTAMP, Pairs, Payload
from acktree.producers.errors import ExecuteHangs, Reject
from acktree.producers.kafka.output import PARTITION_UA
from acktree.producers.kafka.record_limits import read_limits
from acktree.producers.ledger.logged_batch import PlannedBatch, Range, Replays
from acktree.producers.spouts.driver.sources.log_bounds import damaged_loss, log_damaged, log_lost
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.spouts.driver.spout_sources import TasksChanged
from acktree.producers.spouts.outside_commit import GroupInUse
from acktree.producers.spouts.state_topic import PASS_TIMEOUT_S, OutputRecord, control_record
from acktree.producers.stages.planned_records import PlannedRecords
from acktree.producers.stages.root_packer import FinishedRoots, RootPacker, RootSums
from acktree.producers.stages.source_reader import SourceReader
from acktree.producers.stages.transactions import Transaction, cut
from acktree.producers.tuples import Place, Record, Tuple, place_of
from acktree.producers.worker.execute_limit import ExecuteLimit
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.bolt_kinds import (
    collector_of,
    configure,
    find_execute_timeout,
    in_a_thread,
    make_execution,
)
from acktree.producers.worker.executing.execution import fail
from acktree.wire.control_records import Absent, Cause, Fail, Failure, Span
from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import root_ids
from acktree.wire.state_records import StateStart

IDLE_WAIT_S = 0.05
"""How long to wait for a source record: what comes from an acker waits for as long."""
BUSY_WAIT_S = 0.002
"""The same while records are executed."""
COMMIT_INTERVAL_S = 0.01
"""What is finished waits at most so long for its transaction, so that many share one."""
COMMIT_RECORDS, COMMIT_BYTES = 10_000, 16 << 20
"""With so much output a transaction follows, and the turn ends after its record; less on a slow link."""
LEADER_CHECK_S = 2.0
MAX_PLANNED = 2_000
"""At most this many records wait for the function, unless it takes more at a time."""

log = logging.getLogger("acktree.spout")


class StageTask:
    """Runs one task of a spout that reads topics, with the bolt that makes its tuples."""

    def __init__(self, options: SpoutOptions, stage: AnyBolt, progress: Liveness) -> None:
        """Connect; no other process of the task is fenced before ``run``.

        Raises:
            UnknownTopology, BrokerUnreachable, RefusedSetting, BadHandler: see their docstrings.
        """
        self.name, bootstrap, user = options.spout, options.bootstrap, options.kafka
        self._driver = SpoutDriver(options)
        table = self._driver.topology.spouts[self.name]
        self._history = self._driver.history
        latest = self._history.latest
        self.task = f"{self.name}@{world.process_name()}"
        self.progress = progress
        self._limits = read_limits(bootstrap, [*table.emits, latest.ack_init_topic], user)
        self._output: list[OutputRecord] = []
        self._output_bytes = 0
        self._size_limit = TransactionLimit(PASS_TIMEOUT_S, COMMIT_BYTES)
        self._transactions: deque[Transaction] = deque()
        """What is finished and not written yet, where that does not fit into one transaction."""
        self._packer = RootPacker(self._history, self.task, lambda *_: None)
        make_collector = collector_of(stage, exactly_once=True)
        self._collector = make_collector(self.name, self._history, self._packer, self._produce)
        self._collector.sums = RootSums(self.name, self._packer)
        if isinstance(self._collector, TransactionalCollector):
            self._collector.window_offsets = math.inf  # the state of a slot holds any set of offsets
        as_table = table_of(table)
        configure(self._collector, stage, as_table, self.name, user)
        self._planned = PlannedRecords()
        self._turn_limit = Turn()
        made = make_execution(
            stage,
            self._collector,
            self._planned,
            self._planned.hand,
            self._turn_limit,
            exactly_once=True,
        )
        self._execution = in_a_thread(
            made, self._collector, self._turn_limit, self._planned.put_back, self.progress
        )
        self._limit = ExecuteLimit(
            find_execute_timeout(stage, as_table, self.name), self._execution, self.progress
        )
        self._reader = SourceReader(bootstrap, latest.group_of(self.name), user)
        self._floors: dict[Place, int] = {}
        self._damaged: dict[Place, tuple[int, int]] = {}
        """The first offsets that cannot be read, and those behind them, where that ends the task."""
        self._unread: dict[Place, list[tuple[int, Range | Replays, int, Sequence[int]]]] = {}
        """What is planned and waits for a leader of its partition, or for room, as for ``_add_again``."""
        self._stopping = False
        self._next_commit_s = self._next_leader_s = 0.0

    @property
    def reports(self) -> Sequence[Report]:
        """The newest reports."""
        return self._driver.latest_reports

    def stop(self) -> None:
        """Ask ``run`` to end after the records that are executed; may be called from a signal handler."""
        self._stopping = True
        self._turn_limit.stop()

    def driver_start(self) -> StateStart | None:
        """Return the newest start of a driver of all tasks, as far as it is committed."""
        return self._driver.commits.driver_start()

    def run(self, driver_before: StateStart | None, ready: Callable[[], object]) -> None:
        """Run until stopped, or until a newer version deals the partitions to other tasks.

        ``ready`` is called when it has begun; ``driver_before``: see ``SpoutDriver.open``.

        Raises:
            ZombieDriver: another process has taken the task over.
            DataLoss, BrokerRefused: see their docstrings.
            ExecuteHangs: ``execute`` does not return, long after its record has failed.
        """
        self._collector.faults.threads = {world.thread_id()}
        is_whole = hangs = False
        try:
            self._execution.prepare(Context(self._history.latest, self.name, self.task))
            self._open(driver_before, ready)
            with suppress(TasksChanged):
                while not self._stopping:
                    self._turn()
            self._execution.finish(self._in_hand())
            is_whole = True
        except ExecuteHangs:
            hangs = True
            raise
        finally:
            self.progress.end()
            try:
                if not hangs:
                    self._execution.cleanup()
            finally:
                self._close(is_whole)

    def _open(self, driver_before: StateStart | None, ready: Callable[[], object]) -> None:
        """Take the task over, unless it is to stop before that is possible."""
        if self._stopping:
            return
        try:
            self._driver.open(None, driver_before, lambda: not self._stopping)
            ready()
        except GroupInUse:
            if not self._stopping:
                raise

    def _close(self, is_whole: bool) -> None:
        try:
            if is_whole:
                with self._collector.guard:
                    self._write_all()
        finally:
            self._collector.lines.flush(is_last=True)
            self.close()

    def close(self) -> None:
        """Close the connections; ``run`` does."""
        self._reader.close()
        self._driver.close()

    def _turn(self) -> None:
        if self._execution.moves:
            self.progress.begin_turn()
        with self.progress.waiting():
            self._driver.service(0.0)
        self._follow()
        if troubles := self._reader.read(self._wait_s(), self._planned.held_bytes):
            with self.progress.waiting():
                self._look_at(troubles)
            self._follow()
        self._check_damaged()
        self._add_waiting()
        self._plan()
        if self._takes_records and (records := self._planned.take(self._room())):
            with self._collector.guard:
                self._planned.put_back(self._execution.run(records))
        self._execution.wait()
        with self._collector.guard:
            self._serve()

    @property
    def _takes_records(self) -> bool:
        """Whether records may be executed: not while the output of others waits for its transaction."""
        return self._execution.takes_records and not self._transactions

    def _wait_s(self) -> float:
        if self._transactions or (self._planned and self._takes_records):
            return 0.0
        return BUSY_WAIT_S if self._execution.is_busy or self._collector.has_unsent else IDLE_WAIT_S

    def _room(self) -> int:
        """Return how many records the execution takes now."""
        limit = self._execution.max_in_hand
        room = self._execution.max_records
        return room if limit is None else max(0, min(room, limit - len(self._in_hand())))

    def _in_hand(self) -> list[Tuple]:
        return [tup for hand in self._planned.hands.values() for tup in hand.values()]

    def _follow(self) -> None:
        """Read what the driver continues with, after letting go of what was planned before a rewind."""
        rewound, places = list[Place](), self._driver.places()
        for place, (_, ledger) in places.items():
            if self._floors.get(place, ledger.floor) != ledger.floor:
                rewound.append(place)
            self._floors[place] = ledger.floor
        if rewound:
            self._planned.keep(lambda place, offset: offset in places[place][1].unwritten, rewound)
            for place in rewound:
                self._damaged.pop(place, None)
                self._unread[place] = [
                    (version, of, generation, [at for at in offsets if at in places[place][1].unwritten])
                    for version, of, generation, offsets in self._unread.pop(place, ())
                ]
        epochs = {place: ledger.epoch for place, (_, ledger) in places.items()}
        self._reader.follow(self._driver.next_offsets(), epochs)

    def _look_at(self, troubles: Sequence[LogRange]) -> None:
        """Act on what cannot be read. Raises DataLoss: records are lost, and failOnDataLoss is true."""
        for place, found, start, end, *_ in troubles:
            if found is Found.DAMAGED:
                log_damaged(place, start, end)
                if self._driver.fails_on_data_loss:
                    self._damaged.setdefault(place, (start, end))
                continue
            if place not in self._driver.places():
                continue
            if found is Found.FELL:
                self._driver.check_fallen(place, start, end)
                continue
            self._driver.check_sources()
            if found is Found.REMOVED:
                log_lost(place, end - start, start, end - 1, "read")

    def _check_damaged(self) -> None:
        """Stop at damaged records once everything in front of them is done. Raises DataLoss."""
        places = self._driver.places()
        for place, (start, end) in self._damaged.items():
            if place in places and places[place][1].frontier >= start:
                raise damaged_loss(place, start, end)

    def _plan(self) -> None:
        """Plan more records where few wait, and in any case what is due again."""
        wanted = max(MAX_PLANNED, 2 * self._execution.max_records)
        has_room = 2 * len(self._planned) <= wanted and 2 * self._planned.held_bytes <= self._reader.max_bytes
        ends: dict[int, int] = {}
        for place, (slot, ledger) in self._driver.places().items() if has_room else ():
            if (end := self._reader.end(place)) is not None:
                ledger.saw(self._reader.epoch(place))
                self._driver.pass_empty(slot, self._reader.gap(place))
                ends[slot] = min(end, self._damaged.get(place, (end, end))[0])
        batch = self._driver.plan(ends, wanted - len(self._planned) if has_room else 0)
        if batch is not None:
            self._read(batch)

    def _read(self, batch: PlannedBatch) -> None:
        """Take the records of a batch; what is new was fetched before it was planned.

        What is emitted again goes in front of what waits.
        """
        for range_ in batch.ranges:
            place, offsets = (range_.topic, range_.partition), range(range_.start, range_.end)
            if offsets and self._reader.holds(place, offsets):
                records, removed, damaged = self._reader.take(place, range_.start, range_.end)
                lost = removed | damaged
                self._add(batch.version, range_.slot, range_.run << 4, offsets, records, lost)
            else:  # the plan itself has found a reason to go back
                self._add_again(batch.version, range_, range_.run << 4, offsets)
        for again in batch.again:
            self._add_again(batch.version, again, again.run << 4, range(again.start, again.end))
        for group in reversed(batch.replays):
            self._add_again(batch.version, group, group.generation, group.offsets)

    def _add_again(self, version: int, of: Range | Replays, generation: int, offsets: Sequence[int]) -> None:
        """Read planned records by their offsets; without room, or a leader of their partition, they wait."""
        place = of.topic, of.partition
        room = self._reader.max_bytes - self._planned.held_bytes
        try:
            if offsets and room > 0:
                offsets = self._read_again(place, version, of.slot, generation, offsets, room)
        except BrokerUnreachable:
            if not self._driver.is_away(place):
                raise
        if offsets:
            self._unread.setdefault(place, []).append((version, of, generation, offsets))

    def _add_waiting(self) -> None:
        """Read what has waited for a leader, or for room; if there is none yet it waits on."""
        has_room = 2 * self._planned.held_bytes <= self._reader.max_bytes
        if self._unread and has_room and world.monotonic_s() >= self._next_leader_s:
            away = [place for place in self._unread if self._driver.is_away(place)]
            if away:
                self._next_leader_s = world.monotonic_s() + LEADER_CHECK_S
            for place in [place for place in self._unread if place not in away]:
                for waiting in self._unread.pop(place):
                    self._add_again(*waiting)

    def _read_again(
        self, place: Place, version: int, slot: int, generation: int, offsets: Sequence[int], max_bytes: int
    ) -> Sequence[int]:
        """Read about ``max_bytes`` of records; return the offsets that are left."""
        lost, damaged = BitMap64(), set[int]()
        with self.progress.waiting():
            found, left = self._driver.read_records(place, offsets, damaged, max_bytes)
            offsets = [at for at in offsets if not left or at < left[0]]
            if absent := set(offsets).difference(found, damaged):
                lost = self._driver.find_removed(place, BitMap64(absent))
        if lost:
            log_lost(place, len(lost), lost.min(), lost.max(), "emitted again")
        if damaged:
            log_damaged(place, min(damaged), max(damaged) + 1)
            if self._driver.fails_on_data_loss:
                raise damaged_loss(place, min(damaged), max(damaged) + 1)
            lost |= BitMap64(damaged)
        records = [cast(Record, found[at]) for at in sorted(found)]
        self._add(version, slot, generation, offsets, records, lost, is_first=True)
        return left

    def _add(
        self,
        version: int,
        slot: int,
        generation: int,
        offsets: Sequence[int],
        records: Sequence[Record],
        lost: BitMap64,
        *,
        is_first: bool = False,
    ) -> None:
        """Let records wait, except unreadable ones, which fail; planned offsets that hold none are done.

        Those that are ``lost`` are counted, and the others as absent.
        """
        there = np.array([record.offset() or 0 for record in records], np.int64)
        if len(records):
            roots = root_ids(slot, generation, there)
            unreadable = self._planned.add(version, roots, records, is_first=is_first)
            self._collector.hands_on_traces |= self._planned.has_seen_traces
            with self._collector.guard:
                for record, error in unreadable:
                    self._reject(record, error)
        if len(records) < len(offsets):
            gone = BitMap64(offsets) - BitMap64(there)
            for is_lost, found in ((False, gone - lost), (True, gone & lost)):
                spans = [Span(at, at + 1) for at in found]
                self._driver.absent(Absent(slot, generation >> 4, spans, is_lost))

    def _reject(self, record: Record, error: MalformedRecord) -> None:
        """Fail a planned record whose headers cannot be read; with the guard."""
        hand = self._planned.hand(*place_of(record))
        tup = Tuple(record, self._planned.anchors_of(record), self._collector, hand)
        hand[tup.offset] = tup
        fail(tup, Reject(str(error)), self._collector)

    def _produce(
        self,
        topic: str,
        value: Payload,
        key: Payload = None,
        headers: Pairs | None = None,
        timestamp_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Keep a tuple for the next transaction. Raises Unwritable: its topic would never accept it."""
        if self._limits.are_any or timestamp_ms:
            self._limits.check(topic, value, key, headers, timestamp_ms)
        self._output.append((topic, value, key, headers, timestamp_ms, PARTITION_UA))
        self._output_bytes += size_of(value, key)
        if self._output_bytes >= self._size_limit.bytes:
            self._turn_limit.end()

    def _serve(self) -> None:
        """Take what has ended, and write it when that is due; with the guard."""
        self._execution.collect()
        if self._limit.limit_s:
            self._limit.check()
        now_s = world.monotonic_s()
        is_much = len(self._output) >= COMMIT_RECORDS or self._output_bytes >= self._size_limit.bytes
        if self._transactions or is_much or now_s >= self._next_commit_s:
            self._write()
            self._next_commit_s = now_s + COMMIT_INTERVAL_S

    def _write(self) -> None:
        """Write what is finished, in one transaction with the state that says so, or the first of several."""
        if not self._transactions:
            self._transactions += self._take_finished()
        if self._transactions:
            with self.progress.waiting():
                self._write_transaction(self._transactions.popleft())

    def _write_all(self) -> None:
        """Write what is finished, in as many transactions as that takes."""
        self._transactions += self._take_finished()
        while self._transactions:
            self._write()

    def _take_finished(self) -> list[Transaction]:
        """Return, once, what is finished, as transactions that are likely to pass."""
        self._collector.release()
        self._collector.flush()
        whole = Transaction(self._packer.take(), self._output, self._output_bytes)
        self._output, self._output_bytes = [], 0
        if not whole.finished and not whole.output:
            return []
        limit = self._size_limit.bytes
        return [whole] if whole.size <= 2 * limit else cut(whole, limit)

    def _write_transaction(self, transaction: Transaction) -> None:
        """Write a transaction; one of some size only if its output passes, which is then sent first."""
        if transaction.size >= CHECKED_BYTES:
            transaction = self._write_failures(transaction)
            output = self._output_of(transaction)
            passage = self._driver.send(output)
            self._size_limit.update(transaction.size, passage)
            if not passage.is_whole:
                self._divide(transaction, passage)
                return
        else:
            output = self._output_of(transaction)
        self._end_writing(transaction.finished)
        self._driver.write(output, self._failures(transaction.finished))

    def _output_of(self, transaction: Transaction) -> list[OutputRecord]:
        inits = [record for each in transaction.finished for record in self._inits(each)]
        return [*transaction.output, *inits]

    def _write_failures(self, transaction: Transaction) -> Transaction:
        """Write the failures of a transaction, and return it without them."""
        failed = [FinishedRoots(each.version, each.entries[:0], each.failed) for each in transaction.finished]
        if failures := self._failures(failed):
            self._end_writing(failed)
            self._driver.write([], failures)
        return transaction._replace(
            finished=[FinishedRoots(version, entries, ()) for version, entries, _ in transaction.finished]
        )

    def _divide(self, transaction: Transaction, passage: Passage) -> None:
        """Let parts of what has not passed be written next; what cannot be divided fails in the end."""
        parts = cut(transaction, self._size_limit.bytes)
        if len(parts) == 1 and (transaction.tries or 2 * passage.confirmed < 1):
            self._fail_slow(transaction, passage)
            return
        if len(parts) == 1:
            parts = [transaction._replace(tries=1)]
        text = "%.1f MB of output did not pass within %g s; it is written in %d transactions"
        log_retry(log, text, transaction.size / 1e6, PASS_TIMEOUT_S, len(parts), action="transaction_split")
        self._transactions.extendleft(reversed(parts))

    def _fail_slow(self, transaction: Transaction, passage: Passage) -> None:
        """Fail the records whose output does not pass."""
        reason = (
            f"its output of {transaction.size / 1e6:.1f} MB did not pass within {PASS_TIMEOUT_S:g} s "
            f"({passage.rate(transaction.size) / 1e6:.1f} MB/s)"
        )
        slow = [
            FinishedRoots(version, entries[:0], [Fail(root, reason) for root in entries["root"].tolist()])
            for version, entries, _ in transaction.finished
        ]
        text = "%d records of spout %s failed: %s"
        count = sum(len(each.failed) for each in slow)
        log.warning(text, count, self.name, reason, extra={"action": "output_too_slow"})
        self._write_failures(Transaction(slow, (), 0))

    def _inits(self, finished: FinishedRoots) -> list[OutputRecord]:
        published = self._history.at(finished.version)
        return [
            control_record(published.ack_init_topic, partition, record)
            for partition, record in inits_of_tasks(published, finished.entries)
        ]

    def _failures(self, finished: Sequence[FinishedRoots]) -> list[Failure]:
        return [
            Failure(fail.root, Cause.FAILED, self.task, fail.reason, fail.retry_after_ms, fail.failed_tuple)
            for each in finished
            for fail in each.failed
        ]

    def _end_writing(self, finished: Sequence[FinishedRoots]) -> None:
        """Record that these are no longer unwritten, for the next commit."""
        places = {slot: place for place, (slot, _) in self._driver.places().items()}
        for version, entries, fails in finished:
            failed = np.array([fail.root for fail in fails], np.uint64)
            for roots, has_failed in ((entries["root"], False), (failed, True)):
                for slot, offsets in self._planned.finish(roots, places.get).items():
                    self._driver.end_writing(slot, BitMap64(offsets), version, has_failed=has_failed)


def table_of(spout: SpoutTable) -> BoltTable:
    """Return what a stage is, as a bolt that reads the spout's topics.

    >>> table_of(SpoutTable(topics=("orders",), emits=("items",))).reads
    ('orders',)
    """
    return BoltTable(reads=spout.topics, emits=spout.emits)
