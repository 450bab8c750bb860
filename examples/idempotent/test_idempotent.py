"""A payment is added once, whatever is replayed; a bad one becomes a dead letter."""

import os
import sqlite3

import pytest

SINKS = ["sqlite_sink:SqliteSink"]
if "TEST_POSTGRES" in os.environ:
    import psycopg

    SINKS.append("postgres_sink:PostgresSink")


@pytest.fixture(params=SINKS)
def tester(request, topology_tester, tmp_path, monkeypatch):
    address = str(tmp_path / "totals.sqlite")
    if request.param.startswith("postgres"):
        address = os.environ["TEST_POSTGRES"]
        with psycopg.connect(address) as database:
            database.execute("drop table if exists totals, acktree_written")
    monkeypatch.setenv("SINK_DATABASE", address)
    stages = {"payments": lambda row: [{"value": row.value, "key": row.key}]}
    return topology_tester("topology.toml", stages=stages, bolts={"totals": request.param})


def total(account):
    """Return what the sink has for an account."""
    address = os.environ["SINK_DATABASE"]
    connect = sqlite3.connect if address.endswith(".sqlite") else psycopg.connect
    with connect(address) as database:
        return database.execute(f"select amount from totals where account = '{account}'").fetchone()[0]


def test_a_payment_that_is_replayed_is_added_once(tester):
    payments = [tester.send("payments", "ada 5"), tester.send("payments", "ada 7")]
    tester.lose("ack")
    tester.run_until_done()
    assert sum(tester.replays("payments").values()) >= 1
    assert set(tester.acked("payments")) == set(payments)
    assert total("ada") == 12


def test_a_worker_that_is_killed_before_its_commit_adds_once(tester):
    tester.send("payments", "ben 5")
    tester.kill("totals", when="between ack and commit")
    tester.run_until_done()
    assert total("ben") == 5


def test_a_payment_that_cannot_be_added_fails_alone(tester):
    tester.send("payments", "eve much")
    tester.send("payments", "eve 1")
    tester.run_until_done()
    (letter,) = tester.dead_letters()
    assert letter.value == "eve much"
    assert total("eve") == 1
