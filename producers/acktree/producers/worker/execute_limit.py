"""The time limit of ``execute``: a thread that watches the loop, and ends the process that cannot go on.

A thread that runs a bolt cannot be interrupted without the risk of stopping the worker's own code half way.
So the tuple fails by a producer of this thread, is marked as done in the group's offset, the partitions are
given up, and the process ends with EXIT_EXECUTE_TIMEOUT; its successor executes the others again.

Invariant: no tuple is marked as done before its fail is in the log. What cannot be sent or committed is left
out: then the next worker executes the tuple again. From the decision on the loop commits nothing, even if the
tuple returns after all.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from acktree.producers.collecting.counters import Counters
from acktree.producers.collecting.done_above import WINDOW_OFFSETS, decode_done, decode_owner, encode_done
from acktree.producers.collecting.fails import Fails
from acktree.producers.collecting.packing import AckPacker
from acktree.producers.collecting.traces import named
from acktree.producers.errors import DeliveryFailed
from acktree.producers.kafka.deadline_call import call_with_deadline, close_consumer
from acktree.producers.kafka.member_commit import commit_offsets
from acktree.producers.kafka.output import BufferedProducer
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import Tuple
from acktree.producers.worker.bolt_reports import BoltReports
from acktree.producers.worker.execution import Execution
from acktree.schemas import world
from acktree.schemas.client_settings import Settings, producer_settings
from acktree.schemas.clients import metadata_of
from acktree.schemas.control_records import BACK_OFF
from acktree.schemas.errors import AcktreeError
from acktree.schemas.progress import Progress
from acktree.schemas.registry import History
from acktree.schemas.stats import Report

EXIT_EXECUTE_TIMEOUT = 4
"""The exit code of a process whose bolt took too long."""
SEND_S = 10.0
"""How long the fails, and then the commit, may take."""
CHECKS = 10
"""How often to look within the limit."""
MAX_CHECK_INTERVAL_S = 1.0
GATE_INTERVAL_S = 0.005
"""How often to look whether a commit that is under way has ended."""

log = logging.getLogger("acktree.bolt")

_ACTION = {"action": "execute_timeout"}

Committed = Callable[[list[TopicPartition]], Sequence[TopicPartition]]


class NotMarked(AcktreeError):
    """A tuple that took too long could not be marked as done: the next worker executes it again."""


class CommitGate:
    """What the loop passes to commit, and a thread closes that ends the process."""

    def __init__(self) -> None:
        self._lock, self._is_closed = threading.Lock(), False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Commit in this block. Does not return once the gate is closed: the process is about to end."""
        with self._lock:
            if not self._is_closed:
                yield
                return
        world.event().wait()

    def close(self, if_still: Callable[[], bool]) -> bool:
        """Close it, as soon as no commit is under way and if then something still holds; return whether."""
        while not self._lock.acquire(blocking=False):
            world.sleep(GATE_INTERVAL_S)
        try:
            self._is_closed = if_still()
            return self._is_closed
        finally:
            self._lock.release()


class ExecuteWatch:
    """Calls ``on_timeout`` if the bolt executes the same for longer than the limit.

    Time that the loop waits for the broker does not count, nor time in which this thread does not run either:
    then the process is stopped or its machine paused.
    """

    def __init__(
        self,
        limit_s: float,
        executing: Callable[[], Tuple | TupleBatch | None],
        progress: Progress,
        on_timeout: Callable[[Tuple | TupleBatch], object],
    ) -> None:
        self._limit_s, self._executing = limit_s, executing
        self._progress, self._on_timeout = progress, on_timeout
        self._ended = world.event()

    def start(self) -> None:
        """Start to watch."""
        world.start_thread(self._run, "acktree-execute-limit")

    def stop(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def _run(self) -> None:
        seen: Tuple | TupleBatch | None = None
        since_s, checked_s = 0.0, world.monotonic_s()
        interval_s = min(MAX_CHECK_INTERVAL_S, self._limit_s / CHECKS)
        while not self._ended.wait(interval_s):
            now_s, executing = world.monotonic_s(), self._executing()
            if now_s - checked_s > 2 * interval_s:
                since_s += now_s - checked_s - interval_s
            checked_s = now_s
            if executing is None or executing is not seen:
                seen, since_s = executing, now_s
            elif now_s - since_s >= self._limit_s and self._progress.standstill_s >= self._limit_s:
                self._on_timeout(executing)
                seen = None


class LastActs:
    """What a process does for a tuple that it cannot get back, from another thread than the loop's."""

    def __init__(
        self,
        bootstrap: str,
        user: Settings,
        history: History,
        task: str,
        consumer: Consumer,
        fetch_committed: Committed,
    ) -> None:
        self._producer = BufferedProducer(producer_settings(bootstrap, user))
        self._consumer, self._fetch_committed = consumer, fetch_committed
        self._packer = AckPacker(history, task, self._producer.send)

    def fail(self, tuples: Iterable[Tuple], reason: str, stack: str) -> None:
        """Fail tuples, and wait until the broker has all of it. Raises DeliveryFailed, MissingPartition."""
        fails = Fails(self._packer, Counters())
        for tup in tuples:
            fails.pack(tup, reason, BACK_OFF, stack)
        self._packer.flush()
        self._producer.flush(SEND_S)

    def report(self, topic: str, report: Report) -> None:
        """Say on ``topic`` what has happened; it may get lost."""
        with suppress(DeliveryFailed):
            self._producer.produce(topic, report.encode(), report.key())
            self._producer.flush(SEND_S)

    def mark_done(self, tuples: Sequence[Tuple]) -> None:
        """Commit that these tuples are done, and nothing else; the others of their partitions stay open.

        Raises:
            NotMarked: the group did not take it. CallTimedOut: the broker does not answer.
            KafkaException: it refused.
        """
        offsets: dict[tuple[str, int], set[int]] = {}
        for tup in tuples:
            offsets.setdefault((tup.topic, tup.partition), set()).add(tup.offset)
        places = [TopicPartition(*at) for at in offsets]
        found = call_with_deadline(partial(self._fetch_committed, places), may_wait_for(SEND_S))
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
            if place.offset < 0:  # nothing is committed yet: everything that is there is open
                place.offset, _ = self._consumer.get_watermark_offsets(place, timeout=SEND_S)
        marked = [with_done(place, offsets[place.topic, place.partition]) for place in found]
        if not commit_offsets(self._consumer, marked, may_wait_for(SEND_S)):
            raise NotMarked("a rebalance, or a broker that is away, kept the group from taking the offset")
        left = [
            offset for at in marked for offset in offsets[at.topic, at.partition] if not is_done(at, offset)
        ]
        if left:
            raise NotMarked(
                f"{len(left)} tuples are {WINDOW_OFFSETS} offsets or more above the committed one"
            )

    def leave(self) -> None:
        """Leave the group, so that others get the partitions at once."""
        close_consumer(self._consumer)


class ExecuteLimit:
    """The limit of one worker; ``start`` and ``stop`` are called by its loop."""

    def __init__(
        self,
        limit_s: float,
        execution: Execution,
        reports: BoltReports,
        progress: Progress,
        make_last_acts: Callable[[], LastActs],
        on_giving_up: Callable[[], object],
    ) -> None:
        """``on_giving_up``: called first, so that the loop does nothing more when the partitions go."""
        self.limit_s, self._execution, self._reports = limit_s, execution, reports
        self._make_last_acts, self._on_giving_up = make_last_acts, on_giving_up
        self.gate = CommitGate()
        self._watch = ExecuteWatch(limit_s, execution.executing, progress, self.end_process)

    def start(self) -> None:
        """Start to watch, if there is a limit."""
        if self.limit_s:
            self._watch.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._watch.stop()

    def end_process(self, executing: Tuple | TupleBatch) -> None:
        """Fail what is executed, give the partitions up, and end the process, unless it has just returned."""
        if not self.gate.close(lambda: self._execution.executing() is executing):
            return
        self._on_giving_up()
        try:
            self._do_last_acts(tuples_of(executing))
        except Exception as error:
            text = "the group removes this worker after its session timeout: %s"
            log.error(text, error, exc_info=error, extra=_ACTION)
        finally:
            with suppress(Exception):
                sys.stdout.flush()
            world.end_process(EXIT_EXECUTE_TIMEOUT)

    def _do_last_acts(self, tuples: list[Tuple]) -> None:
        stack, reason = stack_of_thread(self._execution.thread), reason_for(self.limit_s)
        text = "%d tuples, first %s: %s; the process ends with exit code %d, its thread stands at\n%s"
        log.error(text, len(tuples), named(tuples[0]), reason, EXIT_EXECUTE_TIMEOUT, stack, extra=_ACTION)
        acts = self._make_last_acts()
        try:
            acts.fail(tuples, reason, stack)
            acts.mark_done(tuples)
        except Exception as error:
            text = "not marked as done, so the next worker executes it again: %s"
            log.error(text, error, exc_info=error, extra=_ACTION)
        self._reports.failed(reason)
        acts.report(self._reports.stats_topic, self._reports.make_of_standstill())
        acts.leave()


def reason_for(limit_s: float) -> str:
    """Return the reason with which such a tuple fails."""
    return f"execute took longer than execute_timeout_s = {limit_s:g}"


def with_done(committed: TopicPartition, offsets: set[int]) -> TopicPartition:
    """Return a committed offset in which more offsets are done; its owner, if it names one, stays.

    >>> place = TopicPartition("words", 0, 4)
    >>> decode_done(metadata_of(with_done(place, {6})), 4)
    DoneAbove(frontier=4, end=7, open=frozenset({4, 5}))
    >>> with_done(place, {4}).offset
    5
    """
    frontier = committed.offset
    text = metadata_of(committed)
    above, owner = decode_done(text, frontier), decode_owner(text, frontier)
    end = max(above.end if above else frontier, max(offsets) + 1)
    done = [offset for offset in range(frontier, end) if offset in offsets or (above and above.holds(offset))]
    left = sorted(set(range(frontier, end)) - set(done))
    first = left[0] if left else end
    return TopicPartition(
        committed.topic, committed.partition, first, metadata=encode_done(first, end, left, owner)
    )


def is_done(committed: TopicPartition, offset: int) -> bool:
    """Return whether a committed offset says that another one is done.

    >>> place = with_done(TopicPartition("words", 0, 4), {6, 99_999})
    >>> is_done(place, 3), is_done(place, 4), is_done(place, 6), is_done(place, 99_999)
    (True, False, True, False)
    """
    above = decode_done(metadata_of(committed), committed.offset)
    return offset < committed.offset or (above is not None and above.holds(offset))


def stack_of_thread(thread_id: int | None) -> str:
    """Return where a thread stands; "" if it runs no more."""
    frame = sys._current_frames().get(thread_id or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def tuples_of(executing: Tuple | TupleBatch) -> list[Tuple]:
    """Return the tuples of what is executed, also those that the bolt has acked or failed in this call.

    What it said of them is not sent yet, and never will be.
    """
    return [executing] if isinstance(executing, Tuple) else list(executing)


def may_wait_for(seconds: float) -> Callable[[], bool]:
    """Return what says whether a call may take longer, for so long from now on."""
    until_s = world.monotonic_s() + seconds
    return lambda: world.monotonic_s() < until_s
