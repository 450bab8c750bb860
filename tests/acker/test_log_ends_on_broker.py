"""Log ends from a real broker that is killed and started again."""

import time

import pytest
from confluent_kafka.admin import NewTopic

from acker.cluster import wait_for
from acktree.acker.kafka.log_ends import LogEnds
from acktree.core.kafka.clients import make_admin

PLACES = [("t", 0), ("t", 1)]


def are_known(ends: LogEnds) -> bool:
    ends.ask(PLACES)
    return len(ends.collect()) == len(PLACES)


@pytest.mark.slow
def test_log_ends_are_known_again_after_a_kill_and_a_restart_of_the_broker(own_broker):
    broker = own_broker()
    admin = make_admin(broker.bootstrap, {})
    admin.create_topics([NewTopic("t", 2, 1)])["t"].result()
    ends = LogEnds(admin, lambda: int(time.time() * 1000))
    wait_for(lambda: are_known(ends), "the first answers")
    broker.kill()
    broker.start()
    wait_for(lambda: are_known(ends), "answers after the restart")
