"""The whole topology in virtual time: no Kafka, no Spark, no waiting."""

import json
import sqlite3

import pytest

TEA = {"id": "A1", "customer": "Ada", "lines": [{"article": "tea", "quantity": 2}]}
GOLD = {"id": "A3", "customer": "Eve", "lines": [{"article": "tea", "quantity": 1}, {"article": "gold"}]}
BOLTS = {"price": "price_lines:PriceLines", "store": "store_lines:StoreLines"}


def lines(row):
    """Do what parse_orders.py does, for one row."""
    try:
        order = json.loads(row.value)
    except ValueError:
        order = {}
    if not order.get("lines"):
        yield {"value": "", "fail": "not an order with lines"}
    for number, line in enumerate(order.get("lines", ())):
        value = {"id": order["id"], "customer": order["customer"], "number": number, **line}
        yield {"value": json.dumps(value), "key": order["id"]}


@pytest.fixture
def tester(topology_tester, tmp_path, monkeypatch):
    monkeypatch.setenv("ORDERS_DATABASE", str(tmp_path / "orders.sqlite"))
    return topology_tester("topology.toml", stages={"orders": lines}, bolts=BOLTS)


@pytest.fixture
def stored(tmp_path):
    def read():
        with sqlite3.connect(tmp_path / "orders.sqlite") as database:
            return database.execute("select id, article, cents from lines").fetchall()

    return read


def test_an_order_becomes_rows_with_prices(tester, stored):
    order = tester.send("orders", json.dumps(TEA))
    tester.run_until_done()
    assert stored() == [("A1", "tea", 900)]
    assert tester.acked("orders") == [order]


@pytest.mark.parametrize(
    ("value", "reason"),
    [("no JSON", "not an order with lines"), (json.dumps(GOLD), "ValueError: unknown article 'gold'")],
)
def test_a_bad_order_becomes_a_dead_letter_and_holds_up_no_other(tester, stored, value, reason):
    tester.send("orders", value)
    tester.send("orders", json.dumps(TEA))
    tester.run_until_done()
    assert [(letter.reason, letter.attempts) for letter in tester.dead_letters()] == [(reason, 3)]
    assert ("A1", "tea", 900) in stored()


@pytest.mark.parametrize(
    ("process", "moment"),
    [
        ("orders", "before a commit"),
        ("price", "between child and ack"),
        ("store", "between ack and commit"),
        ("acker", "between result and commit"),
    ],
)
def test_a_line_is_stored_once_whatever_is_killed(tester, stored, process, moment):
    tester.send("orders", json.dumps(TEA))
    tester.kill(process, when=moment)
    tester.run_until_done()
    assert stored() == [("A1", "tea", 900)]
