"""`acktree breaker close` and the page's word of an open breaker, with a real broker and a running spout."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from acktree.acker.service import Acker
from acktree.console.main import main
from acktree.console.page.serving.frame import PageSettings
from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.producers import BasicBolt
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.worker.loop import Worker
from console.page_visitor import visit
from deadlines import ANSWER_S
from offering_spout import Offers
from producers.cluster import until
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

TOPOLOGY = """
name = "{name}"
ackers = 1
message_timeout_s = 30
[spouts.orders]
emits = ["{name}.orders"]
max_attempts = 1
retry_initial_s = 3600
retry_max_s = 3600
max_consecutive_failures = 3
failure_window_s = 600
[bolts.store]
reads = ["{name}.orders"]
"""
HOSTILE = "<b>bad\x1b[2J</b>"


class BadStore(BasicBolt):
    """Fails everything while it is bad."""

    is_bad = True

    def execute(self, tup, emit):
        if self.is_bad:
            raise ValueError(HOSTILE)


class BreakableTopology:
    """A running topology whose bolt is bad."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self.spout, self.bolt = Offers(*(f"order {number}" for number in range(5))), BadStore()
        self.worker = SpoutWorker(bootstrap, name, self.spout)
        self._roles: list[Any] = [
            Acker(bootstrap, name),
            Worker(bootstrap, name, self.bolt, name="store"),
            self.worker,
        ]
        self._threads = [world.start_thread(role.run, type(role).__name__) for role in self._roles]

    def close_breaker(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["breaker", "close", self.name, *arguments, "-b", self.bootstrap])

    def close(self) -> None:
        for role in self._roles:
            role.stop()
        for thread in self._threads:
            thread.join(ANSWER_S)
            assert not thread.is_alive()


@pytest.fixture
def deploy(kafka: str, unique: str, simulation: Simulation | None) -> Iterator[BreakableTopology]:
    made: list[BreakableTopology] = []
    run_in(simulation, lambda: made.append(BreakableTopology(kafka, unique)))
    yield made[0]
    run_in(simulation, made[0].close)


@pytest.mark.real
def test_an_open_breaker_is_shown_and_an_operator_closes_it(deploy: BreakableTopology):
    with visit(PageSettings(deploy.bootstrap, deploy.name, {})) as page:
        until(lambda: "breaker open" in page.get("/").text, "the tag of the page")
        shown = page.get("/").text
        assert "3 failures in a row; store@" in shown
        assert "<b>bad" not in shown
        assert page.get("/status.json").json()["spouts"][0]["breaker"]["state"] == "open"
        until(lambda: "its breaker is open (3 failures in a row" in deploy.close_breaker().stdout, "a report")
        plan = deploy.close_breaker()
        assert "nothing was changed" in plan.stderr
        assert "\x1b" not in plan.stdout
        assert (deploy.worker.breaker.is_open, deploy.worker.breaker.probes_sent) == (True, 0)

        deploy.bolt.is_bad = False
        done = deploy.close_breaker("--spout", "orders", "--execute", "--format", "json")
        (entry,) = json.loads(done.stdout)["spouts"]
        history = read_history(deploy.bootstrap, deploy.name, {})
        assert (entry["state"], entry["offset"]) == ("open", history.breaker_close("orders"))
        deploy.spout.waiting = ["later"]
        until(lambda: "later" in deploy.spout.acked, "what came later is done")
        assert (deploy.spout.ended, deploy.worker.breaker.probes_sent) == ([], 0)
        until(lambda: "breaker open" not in page.get("/").text, "the page without the tag")


def test_a_breaker_that_is_closed_too_early_opens_again_and_nothing_is_given_up(deploy: BreakableTopology):
    until(lambda: deploy.worker.breaker.openings == 1, "the breaker is open")
    assert deploy.close_breaker("--execute").exit_code == 0
    deploy.spout.waiting = [f"later {number}" for number in range(5)]
    until(lambda: deploy.worker.breaker.openings == 2, "the breaker is open again")
    assert (deploy.spout.acked, deploy.spout.ended) == ([], [])
