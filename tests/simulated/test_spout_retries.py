"""The retries of Python spouts: when a failed message is emitted again, or given up, and who hears of it."""

import logging
from itertools import pairwise
from typing import Any

import pytest

from acktree.core import world
from acktree.core.topology import plan
from acktree.core.topology.file import parse_topology
from acktree.core.topology.flow import Flow
from acktree.core.topology.publish import apply_topology
from acktree.producers import BadHandler, BasicBolt, Reject, RetryLater, Spout, SpoutContext
from acktree.testing import TopologyTester
from acktree.wire.control_records import Cause
from acktree.wire.dead_letter import source_headers

TEXT = """
name = "t"
message_timeout_s = 10
[spouts.orders]
emits = ["a"]
max_attempts = 3
retry_initial_s = 2
retry_max_s = 5
[bolts.store]
reads = ["a"]
"""


class Orders(Spout):
    """Emits some messages once, and keeps what it hears."""

    retry = True
    values = ("good", "bad")

    def __init__(self) -> None:
        self.waiting = list(self.values)
        self.acked: list[Any] = []
        self.failed: list[Any] = []
        self.ended: list[Any] = []

    def next_tuple(self, emitter):
        if self.waiting:
            value = self.waiting.pop(0)
            emitter.emit(value, value, key=f"key of {value}", headers=[("from", value.encode())])

    def ack(self, message):
        self.acked.append(message.id)

    def fail(self, message, failure):
        self.failed.append(message.id)

    def gave_up(self, message, failure):
        self.ended.append((message.id, failure))


class Store(BasicBolt):
    """Fails each value a number of times, and keeps when it was given which."""

    def __init__(self, **failures: Any) -> None:
        self.failures = failures
        self.seen: list[tuple[str, float]] = []

    def execute(self, tup, emit):
        value = tup.value.decode()
        self.seen.append((value, world.monotonic_s()))
        wanted = self.failures.get(value, 0)
        if isinstance(wanted, Exception):
            raise wanted
        if wanted:
            self.failures[value] = wanted - 1
            raise ValueError(f"no {value}")

    def waits_s(self, value: str) -> list[float]:
        times = [at_s for seen, at_s in self.seen if seen == value]
        return [after - before for before, after in pairwise(times)]


class WithoutText(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


def run(spout: Any, store: Any, text: str = TEXT, **more: Any) -> TopologyTester:
    return TopologyTester(
        parse_topology(text), spouts={"orders": spout}, bolts={"store": store}, ackers=1, **more
    )


def test_a_failed_message_is_emitted_again_after_the_back_off_of_its_table():
    spout, store = Orders(), Store(bad=2)
    with run(spout, store) as tester:
        tester.run_until_done()
        assert tester.dead_letters() == []
        assert [failed.record for failed in tester.failures("orders")] == ["bad", "bad"]
    assert (sorted(spout.acked), spout.failed, spout.ended) == (["bad", "good"], [], [])
    first, second = store.waits_s("bad")
    assert 2 <= first < 2.7
    assert 4 <= second < 4.9


def test_after_max_attempts_a_complete_dead_letter_exists_before_gave_up_is_called():
    store, records = Store(bad=9), []

    class ReadsDeadLetters(Orders):
        def gave_up(self, message, failure):
            super().gave_up(message, failure)
            records.extend(tester.records("t.dead-letter"))

    spout = ReadsDeadLetters()
    with run(spout, store) as tester:
        tester.run_until_done()
        (found,) = tester.dead_letters()
    (record,) = records
    assert (record.value, record.key) == (b"bad", b"key of bad")
    headers = dict(record.headers)
    assert headers["from"] == b"bad"
    assert headers["acktree-topic"] == b"a"
    assert headers["kafka_dlt-exception-message"] == b"ValueError: no bad"
    assert (found.spout, found.message_id, found.attempts, found.cause) == ("orders", "bad", 3, "FAILED")
    assert (found.reason, found.task.partition("@")[0]) == ("ValueError: no bad", "store")
    ((message_id, failure),) = spout.ended
    assert (message_id, failure.cause, failure.attempts, failure.retry) == ("bad", Cause.FAILED, 3, False)
    assert (spout.acked, spout.failed, len(store.waits_s("bad"))) == (["good"], [], 2)


def test_while_the_broker_is_away_no_spout_hears_that_a_message_is_given_up():
    spout, store = Orders(), Store(bad=Reject("never"))
    with run(spout, store) as tester:
        tester.run_until(lambda: "bad" in dict(store.seen))
        tester.disconnect("orders", 20)
        tester.run_for(15)
        assert (spout.ended, tester.records("t.dead-letter")) == ([], [])
        tester.run_until_done()
        assert len(tester.dead_letters()) == 1
    assert [message_id for message_id, _ in spout.ended] == ["bad"]


def test_a_rejection_gives_up_immediately_and_a_bolts_delay_replaces_the_back_off():
    spout, store = Orders(), Store(bad=Reject("no such order"), good=RetryLater(30))
    with run(spout, store) as tester:
        tester.run_for(20)
        (found,) = tester.dead_letters()
        store.failures.clear()
        tester.run_until_done()
    assert (found.cause, found.reason, found.attempts) == ("REJECTED", "no such order", 1)
    assert (spout.acked, [each.cause for _, each in spout.ended]) == (["good"], [Cause.REJECTED])
    assert 30 <= store.waits_s("good")[0] < 31


def test_a_function_says_whether_and_when_a_message_is_retried():
    asked = []

    def soon(attempt: int, reason: str) -> float | None:
        asked.append((attempt, reason))
        return 7.0 if attempt < 2 else None

    class ByMethod(Orders):
        def retry(self, attempt, reason):  # type: ignore[override]
            return soon(attempt, reason)

    class ByFunction(Orders):
        retry = soon

    for kind in (ByMethod, ByFunction):
        asked.clear()
        spout, store = kind(), Store(bad=9)
        with run(spout, store) as tester:
            tester.run_until_done()
            (found,) = tester.dead_letters()
        assert found.attempts == 2
        assert asked == [(1, "ValueError: no bad"), (2, "ValueError: no bad")]
        assert 7 <= store.waits_s("bad")[0] < 7.6


@pytest.mark.parametrize(
    "said",
    [
        *(-1, float("nan"), float("inf"), "soon", True, 10_801, 10**400, 10**5000),
        *(ZeroDivisionError("!"), WithoutText()),
    ],
    ids=lambda said: type(said).__name__,
)
def test_an_invalid_delay_of_a_function_is_logged_and_replaced_by_the_back_off(said, caplog):
    def retry(attempt, reason):
        if isinstance(said, Exception):
            raise said
        return said

    spout, store = Orders(), Store(bad=2)
    spout.retry = retry
    with run(spout, store) as tester:
        tester.run_until_done()
        assert tester.dead_letters() == []
    assert sorted(spout.acked) == ["bad", "good"]
    assert 2 <= store.waits_s("bad")[0] < 2.7
    logged = [record for record in caplog.records if getattr(record, "action", "") == "bad_retry"]
    assert len(logged) == 2
    assert "the back-off of the topology is used" in logged[0].getMessage()


async def later(attempt, reason):
    return 1


@pytest.mark.parametrize("wrong", [5, "yes", None, lambda: 1, lambda attempt: 1, later, object()])
def test_an_invalid_retry_attribute_is_refused_at_the_start(wrong):
    spout = Orders()
    spout.retry = wrong
    text = r"Orders\.retry must be True, False, or a function of"
    with pytest.raises(BadHandler, match=text), run(spout, Store()) as tester:
        tester.run_for(5)


def test_a_spout_that_handles_failures_gets_them_and_a_warning_about_its_settings(caplog):
    class HandlesFail(Orders):
        retry = False

        def fail(self, message, failure):
            super().fail(message, failure)
            self.waiting.append(message.id)

    spout, store = HandlesFail(), Store(bad=5)
    with caplog.at_level(logging.WARNING), run(spout, store) as tester:
        tester.run_until_done()
        assert tester.dead_letters() == []
    assert (spout.failed, sorted(spout.acked)) == (["bad"] * 5, ["bad", "good"])
    (said,) = [
        record.getMessage() for record in caplog.records if "ignores its settings" in record.getMessage()
    ]
    assert "max_attempts, retry_initial_s, retry_max_s: HandlesFail handles fail itself" in said


def test_a_spout_that_ignores_failures_causes_a_warning(caplog):
    class IgnoresFailures(Spout):
        def next_tuple(self, emitter):
            pass

    for kind, expected in ((IgnoresFailures, 1), (Orders, 0)):
        caplog.clear()
        with run(kind(), Store()) as tester:
            tester.run_for(1)
        said = [each for each in caplog.records if getattr(each, "action", "") == "fail_unhandled"]
        assert len(said) == expected


def test_a_spout_knows_its_task_and_how_many_there_are():
    seen = []

    class Placed(Orders):
        def prepare(self, context: SpoutContext):
            seen.append((context.task_index, context.tasks, context.bolt))

    with run(Placed, Store(), TEXT.replace("max_attempts = 3", "tasks = 3")) as tester:
        tester.run_until_done()
    assert sorted(seen) == [(0, 3, "orders"), (1, 3, "orders"), (2, 3, "orders")]


def test_a_pause_stops_retries_and_a_drain_finishes_them():
    spout, store = Orders(), Store(bad=2)
    spout.waiting = ["bad"]
    with run(spout, store) as tester:
        tester.run_until(lambda: store.seen)
        tester.set_flow("orders", Flow.PAUSED)
        tester.run_for(4)
        seen = len(store.seen)
        tester.run_for(60)
        assert (len(store.seen), spout.acked, tester.pending("orders")) == (seen, [], 1)
        spout.waiting = ["new"]
        tester.set_flow("orders", Flow.DRAINING)
        tester.run_until(lambda: spout.acked)
        tester.run_for(10)
        assert (spout.acked, tester.pending("orders")) == (["bad"], 0)


def test_timeouts_while_nothing_is_acked_use_up_no_attempt():
    spout = Orders()
    with run(spout, Store()) as tester:
        tester.lose("ack", times=10)
        tester.run_until_done()
        assert tester.dead_letters() == []
        assert {failed.cause for failed in tester.failures("orders")} == {Cause.TIMED_OUT}
        assert len(tester.failures("orders")) > 3
    assert sorted(spout.acked) == ["bad", "good"]


def test_timeouts_that_use_up_no_attempt_back_off_longer_each_time_up_to_the_limit():
    spout, store = Orders(), Store()
    spout.waiting = ["good"]
    text = TEXT.replace("initial_s = 2", "initial_s = 20").replace("max_s = 5", "max_s = 80")
    with run(spout, store, text) as tester:
        tester.lose("ack", times=5)
        tester.run_until_done()
        assert tester.dead_letters() == []
    waits_s = store.waits_s("good")
    for waited_s, back_off_s in zip(waits_s, (20, 40, 80, 80, 80), strict=True):
        assert back_off_s + 10 <= waited_s < 1.1 * back_off_s + 16, waits_s


def test_a_function_cannot_give_up_for_timeouts_while_nothing_is_acked():
    asked = []

    class Schedule(Orders):
        def retry(self, attempt, reason):  # type: ignore[override]
            asked.append((attempt, reason))
            return [1.0, None][attempt - 1]

    spout = Schedule()
    with run(spout, Store(bad=1)) as tester:
        tester.lose("ack", times=10)
        tester.run_until_done()
        assert tester.dead_letters() == []
    assert sorted(spout.acked) == ["bad", "good"]
    assert [attempt for attempt, reason in asked if not reason] == []


def test_a_dead_letter_names_the_failed_tuple_and_ignores_headers_of_an_older_one():
    class PassesHeadersOn(Orders):
        def next_tuple(self, emitter):
            if self.waiting:
                value = self.waiting.pop(0)
                emitter.emit(value, value, headers=older)

    older = [(name, b"older") for name in ("acktree-failed-value", "acktree-failed-value-note")]
    older += [("acktree-origin", b"lines/0/7"), ("kafka_dlt-exception-stacktrace", b"older")]
    older += [("acktree-failed-tuple", b"words/0/1")]
    with run(PassesHeadersOn(), Store(bad=9, good=Reject("never"))) as tester:
        tester.run_until_done()
        found = {each.message_id: each for each in tester.dead_letters()}
        records = tester.records("t.dead-letter")
    bad, good = found["bad"], found["good"]
    assert bad.failed_tuple.startswith("a/")
    assert (bad.topic, bad.failed_value, bad.failed_value_note) == ("", None, "")
    assert 'raise ValueError(f"no {value}")' in bad.stack
    assert bad.stack.endswith("ValueError: no bad\n")
    assert good.stack.endswith("never\n")
    for record in records:
        assert source_headers(list(record.headers)) == older, "what the spout emitted"


class LargeOrders(Orders):
    """Emits values alone; the id is the beginning of the value."""

    def next_tuple(self, emitter):
        if self.waiting:
            value = self.waiting.pop(0)
            emitter.emit(value, value[:5])


@pytest.fixture
def no_room_for_headers(monkeypatch):
    """Give the dead-letter topic the limit of tuples, as a broker does that refuses a larger one."""
    monkeypatch.setattr(plan, "DEAD_LETTER_HEADERS_BYTES", 0)


@pytest.mark.usefixtures("no_room_for_headers")
@pytest.mark.parametrize("is_rejected", [False, True])
def test_a_message_too_large_for_a_dead_letter_is_never_given_up_and_blocks_no_other(
    is_rejected: bool, caplog
):
    large = "large" + "x" * 1_048_150
    failures = {large: Reject("never") if is_rejected else 8, "worse": Reject("never")}
    spout, store = LargeOrders(), Store(**failures)
    spout.waiting = [large, "good", "worse"]
    with run(spout, store) as tester:
        tester.run_until(lambda: len(store.waits_s(large)) > 4, 200)
        assert (spout.acked, [message_id for message_id, _ in spout.ended]) == (["good"], ["worse"])
        assert [found.message_id for found in tester.dead_letters()] == ["worse"]
        store.failures.clear()
        tester.run_until_done()
    assert spout.acked == ["good", "large"]
    (said, *_) = [record for record in caplog.records if getattr(record, "action", "") == "no_dead_letter"]
    assert "is too large for topic t.dead-letter" in said.getMessage()


@pytest.mark.usefixtures("no_room_for_headers")
def test_a_dead_letter_that_is_too_large_with_its_stack_is_written_without_it():
    large = "large" + "x" * 1_046_900
    spout, store = LargeOrders(), Store(**{large: Reject("never")})
    spout.waiting = [large]

    store.failures[large].__cause__ = ValueError("a long text " * 250)
    with run(spout, store) as tester:
        tester.run_until_done()
        (found,) = tester.dead_letters()
    assert (found.stack, found.failed_tuple, found.reason) == ("", "", "never")
    assert len(spout.ended) == 1


def test_every_tuple_of_a_message_is_emitted_again_and_gets_its_own_dead_letter():
    class Two(Spout):
        retry = True

        def __init__(self) -> None:
            self.waiting, self.ended = ["m"], []

        def next_tuple(self, emitter):
            if self.waiting:
                message_id = self.waiting.pop(0)
                emitter.emit(f"{message_id} 1", (message_id, 7), topic="a", timestamp_ms=86_400_000)
                emitter.emit(None, (message_id, 7), topic="b", key=b"gone")

        def gave_up(self, message, failure):
            self.ended.append((message.id, message.values))

    class FailsWithoutKey(BasicBolt):
        def execute(self, tup, emit):
            if tup.key is None:
                seen.append(tup.timestamp_ms)
                raise ValueError("no")

    seen: list[int] = []
    text = TEXT.replace('emits = ["a"]', 'emits = ["a", "b"]').replace('reads = ["a"]', 'reads = ["a", "b"]')
    spout = Two()
    with run(spout, FailsWithoutKey(), text) as tester:
        tester.run_until_done()
        found = sorted(tester.dead_letters(), key=lambda each: each.headers["acktree-tuple"])
        records = tester.records("t.dead-letter")
    assert spout.ended == [(("m", 7), ("m 1", None))]
    assert seen == [86_400_000] * 3
    assert [each.headers["acktree-tuple"] for each in found] == ["1/2", "2/2"]
    assert [each.headers["acktree-topic"] for each in found] == ["a", "b"]
    assert {each.message_id for each in found} == {"('m', 7)"}
    assert {(record.value, record.key) for record in records} == {(b"m 1", None), (None, b"gone")}
    assert min(record.timestamp_ms for record in records) > 86_400_000


def test_a_message_that_can_no_longer_be_emitted_is_given_up_and_says_why():
    spout, store = Orders(), Store(bad=RetryLater(20, "wait"))
    with run(spout, store) as tester:
        tester.run_until(lambda: spout.acked and len(store.seen) == 2)
        changed = TEXT.replace('"a"', '"other"')
        tester._as_operator(lambda: apply_topology("simulated", parse_topology(changed), {}))
        tester.run_until(lambda: spout.ended, 60)
        (found,) = tester.dead_letters()
    assert found.reason.startswith("WrongTopic: orders emits to a, but its emits in the topology are: other")
    assert found.reason.endswith("it failed before: wait")
    assert found.cause == "FAILED"


def test_waiting_messages_count_as_pending_and_as_kept():
    class Small(Orders):
        values = tuple(f"bad{number}" for number in range(20))
        max_kept_bytes = 100

    spout, store = Small(), Store(**dict.fromkeys(Small.values, RetryLater(60)))
    with run(spout, store) as tester:
        tester.run_for(30)
        assert 0 < tester.pending("orders") <= 6
        store.failures.clear()
        tester.run_until_done()
        assert tester.service("orders-0").runner.emitter.pending.kept_bytes == 0
    assert sorted(spout.acked) == sorted(Small.values)
