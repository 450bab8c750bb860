"""Bad use of the simulated Kafka in a test: each is one error that names it, and none hangs."""

import threading
import time
from collections.abc import Iterator

import pytest

from acktree.core import world
from acktree.core.errors import RefusedSetting
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.testing.virtual.errors import NothingCanHappen, NotSimulated, TookTooLong
from simulated_kafka import Simulation, simulated


@pytest.fixture
def made() -> Iterator[Simulation]:
    """A simulation in which no test runs yet; ``run`` does what a test would do."""
    with simulated() as simulation:
        yield simulation


def consumer():
    return make_consumer({"group.id": "g", "auto.offset.reset": "earliest"})


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: make_admin("simulated", {}).list_consumer_groups(), "AdminClient.list_consumer_groups"),
        (lambda: consumer().store_offsets(), "Consumer.store_offsets"),
        (lambda: make_producer({}).set_sasl_credentials("", ""), "Producer.set_sasl_credentials"),
    ],
)
def test_a_call_that_no_simulated_client_has_is_named(made: Simulation, call, named: str):
    with pytest.raises(NotSimulated, match=f"{named} is not simulated; test this against a real Kafka"):
        made.run(call)


@pytest.mark.parametrize("make", [make_consumer, make_producer, lambda given: make_admin("simulated", given)])
def test_an_unknown_property_is_refused_as_by_a_real_client(made: Simulation, make):
    with pytest.raises(RefusedSetting, match='No such configuration property: "linger"'):
        made.run(lambda: make({"linger": 1}))


def test_a_wait_that_nothing_can_end_is_named_with_its_place(made: Simulation):
    with pytest.raises(NothingCanHappen, match=r"(?s)test waits for an event.*test_misuse.py:\d+"):
        made.run(lambda: world.event().wait())


def test_a_wait_for_a_record_that_never_comes_ends_and_is_named_with_its_place(made: Simulation):
    def await_record() -> None:
        reader = consumer()
        reader.subscribe(["t"])
        while reader.poll(1.0) is None:
            pass

    with pytest.raises(TookTooLong, match=r"(?s)waits for records for group g.*test_misuse.py:\d+ await"):
        made.run(await_record)


def test_a_real_sleep_is_refused_because_it_would_never_end(made: Simulation):
    with pytest.raises(NotSimulated, match=r"time\.sleep .* acktree\.core\.world\.sleep"):
        made.run(lambda: time.sleep(0.01))
    time.sleep(0)  # outside of the test's own code


def test_a_thread_that_outlives_its_test_is_named(made: Simulation):
    made.run(lambda: world.start_thread(lambda: world.sleep(1e6), "forgotten"))
    with pytest.raises(AssertionError, match="these threads still run; stop them:\ntest: forgotten waits"):
        made.close()
    made.close()  # nothing is left


def test_an_error_that_ended_a_thread_or_process_is_shown_with_the_failure(made: Simulation):
    def wait_for_both() -> None:
        made.start_process(lambda: 1 / 0)
        world.start_thread(lambda: {}["key"], "t")
        world.sleep(1.0)
        raise AssertionError("waited in vain")

    with pytest.raises(AssertionError, match="waited in vain") as raised:
        made.run(wait_for_both)
    assert [note.split(" ended with ")[1] for note in raised.value.__notes__] == [
        "KeyError('key')",
        "ZeroDivisionError('division by zero')",
    ]


def test_a_test_that_has_failed_may_leave_threads(made: Simulation):
    def fail() -> None:
        world.start_thread(lambda: world.sleep(1e6), "forgotten")
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        made.run(fail)
    made.close()


def test_a_real_thread_is_refused_and_so_is_every_wait_for_it(made: Simulation):
    refused: list[BaseException] = []

    def use() -> None:
        try:
            consumer().poll(1.0)
        except NotSimulated as error:
            refused.append(error)

    def wait_for_it() -> None:
        thread = threading.Thread(target=use, name="stray")
        thread.start()
        thread.join()
        world.sleep(1.0)

    with pytest.raises(NotSimulated, match="the real thread 'stray' uses the simulated Kafka"):
        made.run(wait_for_it)
    assert "world.start_thread" in str(refused[0])


def test_a_client_outside_of_the_test_is_refused(made: Simulation):
    with pytest.raises(NotSimulated, match="only a task of a simulated process may do this"):
        consumer()
