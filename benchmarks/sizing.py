"""What docs/sizing.md predicts for a load, beside what a run of it takes: CPU, bytes written, in flight.

    python benchmarks/sizing.py [--orders 50] [--items 10] [--work-ms 0.2] [--workers 2] [--seconds 30]

Orders arrive steadily; a stage in Python, a `BatchBolt`, makes items of each, and the workers of a
`BasicBolt` use a fixed amount of CPU for every item. Each part is its own process. CPU is user and system
time of a part's processes, Kafka client included. Bytes are those by which the broker's logs grow: of one
replica, and none with -b, where the logs are elsewhere. In flight is the mean over time, by the spout's
reports.
"""

import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition

from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.reports.stats import Report, decode_report
from clock import TreeClock
from harness import Cluster, Deployment, Table, arguments, cluster, flush, new_name, produce, wait_until
from sizing_formulas import LEAST, MOST, OWN, Counts, Load, predict, topic_bytes

WARM_UP_S, LIMIT_S, TICK_S = 5.0, 180.0, 0.005
KEY = 8
"""Of an item, these bytes are its key."""
KINDS = {"tuples": "items", "inits": "ack-init", "acks": "ack", "results": "spout-0", "state": "state-orders"}
OWN_TOPICS = ("__transaction_state", "__consumer_offsets")
Totals = tuple[float, dict[str, float]]
"""At a time, by the clock of the process that has counted them."""
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.orders]
topics = ["{name}.orders"]
emits = [{{topic = "{name}.items", partitions = {partitions}}}]
[bolts.price]
reads = ["{name}.items"]
"""


def arrive(producer: Producer, topic: str, load: Load, is_over: threading.Event) -> None:
    """Produce orders at a steady rate until it is over."""
    began_s, sent, value = time.monotonic(), 0, b"x" * load.order_bytes
    while not is_over.wait(TICK_S):
        due = int((time.monotonic() - began_s) * load.orders)
        for _ in range(due - sent):
            produce(producer, topic, value)
        sent = due
        producer.poll(0)
    flush(producer)


def newest_reports(stats: Consumer) -> dict[str, Report]:
    """Return the newest reports of the spout and the acker; wait for the next ones."""
    found: dict[str, Report] = {}

    def are_there() -> bool:
        reports = [decode_report(message.value() or b"") for message in stats.consume(1_000, 0.2)]
        found.update({report.role: report for report in reports})
        return found.keys() >= {"spout", "acker"}

    wait_until(are_there, LIMIT_S, "the spout and the acker report")
    return found


def measure(kafka: Cluster, deployment: Deployment, load: Load, seconds: float) -> dict[str, float]:
    """Run the load, and return what it takes a second."""
    (deployment.folder / "load").write_text(f"{load.items} {load.item_bytes - KEY} {load.work_ms}")
    bolt, stage = ("jobs:Busy", "--bolt", "price"), ("jobs:CutOrders", "--spout", "orders")
    parts = {
        "acker": [deployment.start("acker", "run").pid],
        "bolt": [deployment.start("bolt", "run", *bolt).pid for _ in range(load.workers)],
        "stage": [deployment.start("spout", "run", *stage).pid],
        "broker": [kafka.broker_pid] if kafka.broker_pid else [],
    }
    clocks = {part: [TreeClock(pid) for pid in pids] for part, pids in parts.items()}
    stats = deployment.consumer("look")
    stats.assign([TopicPartition(f"{deployment.name}.stats", 0, 0)])
    is_over, topic = threading.Event(), f"{deployment.name}.orders"
    arrivals = threading.Thread(target=arrive, args=(kafka.producer(), topic, load, is_over), daemon=True)
    arrivals.start()

    def written(topic: str, partitions: int = 1) -> int:
        places = (TopicPartition(f"{deployment.name}.{topic}", number) for number in range(partitions))
        return sum(stats.get_watermark_offsets(place, timeout=BROKER_TIMEOUT_S)[1] for place in places)

    def totals() -> list[Totals]:
        reports = newest_reports(stats)
        spout, acker = (reports[role].values for role in ("spout", "acker"))
        figures = {f"CPU, {part}": sum(clock().cpu_s for clock in each) for part, each in clocks.items()}
        if kafka.logs:
            figures |= {
                f"bytes, {kind}": kafka.log_bytes(f"{deployment.name}.{KINDS[kind]}") for kind in KINDS
            }
            figures[f"bytes, {OWN}"] = sum(map(kafka.log_bytes, OWN_TOPICS))
        figures |= {"inits": written("ack-init", load.ackers) / 2, "acks": written("ack", load.ackers)}
        figures["results"] = written("spout-0")
        done = {"orders": float(spout["completed"]), "orders in flight": float(spout["pending_s"])}
        folded = {"roots": float(acker["acked"]), "entries": float(acker["folded"]) - float(acker["acked"])}
        at_s = [reports[role].time_ms / 1000 for role in ("spout", "acker")]
        return [(time.monotonic(), figures), (at_s[0], done), (at_s[1], folded)]

    wait_until(lambda: totals()[1][1]["orders"] >= load.orders * WARM_UP_S, LIMIT_S, "the warm-up is done")
    before = totals()
    time.sleep(seconds)
    after = totals()
    is_over.set()
    arrivals.join()
    pairs = [(now_s - was_s, was, now) for (was_s, was), (now_s, now) in zip(before, after, strict=True)]
    return {name: (now[name] - was[name]) / span_s for span_s, was, now in pairs for name in now}


def counted(load: Load, a_second: Mapping[str, float]) -> dict[str, float]:
    """Return the bytes of the records that a run has counted, by the formulas; a transaction has an init."""
    inits, acks, results = (a_second[name] for name in ("inits", "acks", "results"))
    orders, entries = a_second["orders"], a_second["entries"]
    return topic_bytes(load, Counts(orders, inits / load.ackers, inits, acks, results, entries))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--orders", type=float, default=50.0, help="a second")
    parser.add_argument("--items", type=int, default=10, help="of an order")
    parser.add_argument("--order-bytes", type=int, default=500)
    parser.add_argument("--item-bytes", type=int, default=100, help=f"with a key of {KEY}")
    parser.add_argument("--work-ms", type=float, default=0.2, help="CPU an item")
    parser.add_argument("--ackers", type=int, default=1, help="partitions of the control topics")
    parser.add_argument("--partitions", type=int, default=4, help="of items, and of orders")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    given = {name: value for name, value in vars(asked).items() if name in Load._fields}
    load = Load(**given, sources=asked.partitions)
    with cluster(asked) as kafka:
        text = TOPOLOGY.format(name=new_name(), ackers=load.ackers, partitions=load.partitions)
        with kafka.deployment(text, {"orders": load.sources}) as deployment:
            measured = measure(kafka, deployment, load, asked.seconds)
    least, most, by_count = predict(load, LEAST), predict(load, MOST), counted(load, measured)
    table = Table(f"{load.orders:g} orders a second arrive", "least", "most", "by count", "measured")
    for name in ("orders", *least, "CPU, broker"):
        table.row(name, *(each.get(name, "-") for each in (least, most, by_count, measured)))


if __name__ == "__main__":
    main()
