"""How long a driver takes to start behind many commits of its state, beside the start of a fresh spout.

    python benchmarks/state_start.py [--commits 20000,100000] [--slots 4]

Each commit is a transaction with a record per slot and one of the spout, as a busy stage writes up to a
hundred a second; here they follow each other as fast as the broker takes them. Kafka compacts meanwhile,
by the settings that ``acktree topology apply`` gives the topic. Invariant: what is timed is the driver's own
start.
"""

from statistics import median

from acktree.core.kafka.clients import make_admin
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_states import SpoutStates
from acktree.producers.spouts.state_topic import StateTopic
from acktree.spark.shared.options import SourceOptions
from acktree.wire.state_records import SPOUT_KEY, SpoutState, encode_slot_state, encode_spout_state
from clock import Spent, this_process
from harness import Cluster, Table, arguments, cluster, new_name

TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.in]
topics = ["{name}.in"]
emits = ["{name}.out"]
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--commits", default="20000,100000", help="numbers, with commas between them")
    parser.add_argument("--slots", type=int, default=4, help="records of source partitions in each commit")
    parser.add_argument("--starts", type=int, default=3)
    asked = parser.parse_args()
    with (
        cluster(asked) as kafka,
        kafka.deployment(TOPOLOGY.format(name=new_name()), {"in": asked.slots}) as made,
    ):
        table = Table("commits", "start, s", "CPU s", "read", "MB")
        done = 0
        for commits in (0, *map(int, asked.commits.split(","))):
            if commits:
                commit(kafka.bootstrap, made.name, commits - done)
            done = commits
            took = [start(kafka.bootstrap, made.name) for _ in range(asked.starts)]
            table.row(
                str(commits),
                *(median(getattr(one, of) for one in took) for of in ("wall_s", "cpu_s")),
                str(there(kafka, f"{made.name}.state-in")),
                kafka.log_bytes(f"{made.name}.state-in") / 1e6,
            )


def start(bootstrap: str, name: str) -> Spent:
    """Start a driver, and return what that took."""
    given = {"kafka.bootstrap.servers": bootstrap, "topology": name, "spout": "in"}
    before = this_process()
    driver = SpoutDriver(SourceOptions.parse(given))
    driver.open(None)
    took = this_process().since(before)
    driver.close()
    return took


def commit(bootstrap: str, name: str, times: int) -> None:
    """Commit the state that is there again and again, a little later each time."""
    topic = StateTopic(
        make_admin(bootstrap, {}), bootstrap, {}, f"{name}.in", f"{name}.state-in", f"{name}.in"
    )
    states = topic.take_over(SpoutStates())
    spout = states.spout or SpoutState(1, "", 1)
    for number in range(times):
        records = {
            key.encode(): encode_slot_state(state._replace(limit=number))
            for key, state in states.slots.items()
        }
        topic.commit({**records, SPOUT_KEY: encode_spout_state(spout)})


def there(kafka: Cluster, topic: str) -> int:
    """Return how many records of a topic a reader meets."""
    found = 0
    consumer = kafka.consumer(**{"enable.partition.eof": True, "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    while True:
        messages = consumer.consume(5_000, 5.0)
        found += sum(message.error() is None for message in messages)
        if not messages or any(message.error() is not None for message in messages):
            consumer.close()
            return found


if __name__ == "__main__":
    main()
