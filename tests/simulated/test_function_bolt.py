"""A bolt that is a function, in a whole topology: malformed values are dead letters, all else is done."""

from pydantic import BaseModel

from acktree.producers import To, bolt
from acktree.schemas.topology import parse_topology
from acktree.testing import TopologyTester

RECORDS, BAD_EVERY = 2_000, 100
TOPOLOGY = parse_topology("""
name = "t"
ackers = 2
[spouts.orders]
topics = ["orders"]
emits = ["lines"]
[bolts.total]
reads = ["lines"]
emits = ["totals"]
exactly_once = true
[bolts.keep]
reads = ["totals"]
""")


class NotedOrder(BaseModel):
    number: int
    note: str = ""


def same(row):
    return [row.value]


@bolt(reads="lines", emits="totals")
async def total(order: NotedOrder) -> To:
    return To({"number": order.number}, key=str(order.number))


def test_one_malformed_value_in_a_hundred_is_rejected_while_a_worker_is_killed():
    """Each value is 100 bytes and more, so that a batch is larger than a message."""
    done: list[int] = []

    @bolt(reads="totals")
    def keep(total: dict) -> None:
        done.append(total["number"])

    with TopologyTester(TOPOLOGY, bolts={"total": total, "keep": keep}, stages={"orders": same}) as topology:
        for number in range(RECORDS):
            order = NotedOrder(number=number, note="x" * 100).model_dump_json()
            bad = order.replace(f"{number}", '"none"', 1)
            topology.send("orders", bad if number % BAD_EVERY == 50 else order)
        topology.run_for(1)
        topology.kill("total-0")
        topology.run_until_done()
        letters = topology.dead_letters()
    assert sorted(set(done)) == [number for number in range(RECORDS) if number % BAD_EVERY != 50]
    assert len(letters) == RECORDS // BAD_EVERY
    assert {each.cause for each in letters} == {"REJECTED"}
    assert "number: Input should be a valid integer" in letters[0].reason
