"""The page and its broker: it goes away and comes back, and topics vanish, while the page lives on."""

import pytest
from confluent_kafka.admin import NewTopic

from acktree.console.devbroker import ports
from acktree.console.page.serving.frame import PageSettings
from acktree.core import world
from acktree.core.kafka.clients import make_admin
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from console.page_visitor import visit
from deadlines import stretched

pytestmark = pytest.mark.timeout(240)

TOPOLOGY = """
name = "t"
[spouts.lines]
topics = ["lines"]
emits = ["words"]
[bolts.count]
reads = ["words"]
"""
DEADLINE_S = stretched(90)


def until(holds, what):
    deadline_s = world.monotonic_s() + DEADLINE_S
    while not (found := holds()):
        assert world.monotonic_s() < deadline_s, f"{what} did not come true"
        world.sleep(0.1)
    return found


def publish(bootstrap):
    admin = make_admin(bootstrap, {})
    admin.create_topics([NewTopic("lines", 1)])["lines"].result()
    apply_topology(bootstrap, parse_topology(TOPOLOGY), {})
    return admin


@pytest.mark.slow
def test_the_page_survives_the_loss_of_its_broker_and_topics(own_broker):
    broker = own_broker(port=ports.free_ports(1)[0])
    admin = publish(broker.bootstrap)
    with visit(PageSettings(broker.bootstrap, "t", {})) as client:

        def status():
            return client.get("/status.json").json()

        until(lambda: status()["error"] is None, "a first look")
        admin.delete_topics(["words"])["words"].result()
        until(lambda: all(not bolt["inputs"] for bolt in status()["bolts"]), "the topic to be gone")
        assert status()["error"] is None
        broker.stop()
        error = until(lambda: status()["error"], "the page to notice")
        assert "no Kafka broker answers" in error or "no answer from" in error
        page = client.get("/")
        assert page.status_code == 200
        assert "The data below is" in page.text
        assert "lines/0" in page.text
        assert client.get("/trace", params={"topic": "lines", "partition": 0, "offset": 0}).status_code == 503
        broker.start()
        until(lambda: status()["error"] is None, "the page to go on")
        assert client.get("/trace", params={"topic": "lines", "partition": 0, "offset": 0}).status_code == 200


@pytest.mark.simulated
def test_a_topology_published_later_appears(kafka, unique):
    with visit(PageSettings(kafka, unique, {})) as client:
        until(lambda: "is not published" in client.get("/status.json").json()["error"], "the sentence")
        assert client.get("/pending").status_code == 404
        admin = make_admin(kafka, {})
        world.wait_for(admin.create_topics([NewTopic(f"{unique}.lines", 1)])[f"{unique}.lines"], DEADLINE_S)
        text = TOPOLOGY.replace('"t"', f'"{unique}"').replace('"lines"', f'"{unique}.lines"')
        apply_topology(kafka, parse_topology(text.replace('"words"', f'"{unique}.words"')), {})
        until(lambda: client.get("/status.json").json()["error"] is None, "the topology")
        assert "No acker has reported" in client.get("/").text


@pytest.mark.simulated
def test_several_topologies_of_a_cluster_are_on_one_page(kafka, unique):
    names = [f"{unique}-{number}" for number in (1, 2)]
    admin = make_admin(kafka, {})
    for name in names:
        world.wait_for(admin.create_topics([NewTopic(f"{name}.lines", 1)])[f"{name}.lines"], DEADLINE_S)
        text = TOPOLOGY.replace('"t"', f'"{name}"').replace('"lines"', f'"{name}.lines"')
        apply_topology(kafka, parse_topology(text.replace('"words"', f'"{name}.words"')), {})
    settings = [PageSettings(kafka, name, {}) for name in (*names, f"{unique}-absent")]
    with visit(*settings) as client:

        def states():
            return [each["state"] for each in client.get("/topologies.json").json()["topologies"]]

        until(lambda: states() == ["incomplete", "incomplete", "unknown"], "a look at each")
        for name in names:
            assert client.get(f"/t/{name}/status.json").json()["topology"] == name
            assert client.get(f"/t/{name}/pending").status_code == 200
        missing = client.get(f"/t/{unique}-absent/pending")
        assert (missing.status_code, "is not published" in missing.text) == (404, True)
        assert f'<a href="/t/{unique}-absent/">' in missing.text
