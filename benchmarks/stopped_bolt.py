"""What a bolt that nobody serves for some minutes costs: replays, and executions by the bolt beside it.

    python benchmarks/stopped_bolt.py [-b HOST:PORT] [--seconds 170] [--records 185]

Runs an acker, a Spark application and two bolts that read the same topic, each in its own process. One
bolt is killed before the records come, and started again at the end.
"""

import json
import subprocess
import time

from confluent_kafka import TopicPartition

from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import consumer_settings
from harness import (
    ACKTREE,
    Cluster,
    Deployment,
    Table,
    arguments,
    cluster,
    flush,
    new_name,
    produce,
    wait_until,
)

LIMIT_S = 300.0
TOPOLOGY = """
name = "{name}"
ackers = 2
message_timeout_s = 30
[spouts.clicks]
topics = ["{name}.clicks"]
emits = ["{name}.parsed"]
[bolts.count]
reads = ["{name}.parsed"]
[bolts.archive]
reads = ["{name}.parsed"]
"""


def tuples(deployment: Deployment) -> int:
    """Return how many tuples are in the topic of the bolts, without the markers of transactions."""
    settings = consumer_settings(deployment.bootstrap, f"{deployment.name}.look", {})
    consumer = make_consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(f"{deployment.name}.parsed", 0, 0)])
    found = 0
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found += 1
    consumer.close()
    return found


def ask(deployment: Deployment, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that looks; exit code 1 says that something is stuck."""
    at = ["--topology", deployment.name, "-b", deployment.bootstrap]
    done = subprocess.run([ACKTREE, *command, *at], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done


def is_pending(deployment: Deployment) -> bool:
    listed = json.loads(ask(deployment, "pending", "list", "--format", "json").stdout)
    return bool(listed["pending"]) or bool(listed["unreported"])


def measure(kafka: Cluster, deployment: Deployment, records: int, seconds: float) -> None:
    count = ("bolt", "run", "jobs:Ack", "--bolt", "count")
    deployment.start("acker", "run")
    deployment.start("spark", "run", "jobs:values", "--spout", "clicks")
    deployment.start("bolt", "run", "jobs:Ack", "--bolt", "archive")
    deployment.start(*count).kill()
    producer = kafka.producer()
    for number in range(records):
        produce(producer, f"{deployment.name}.clicks", b"click %d" % number)
    flush(producer)
    time.sleep(seconds)
    described = ask(deployment, "describe")
    print(f"describe, exit code {described.returncode}:\n{described.stdout}")
    replays = tuples(deployment) - records
    began_s = time.monotonic()
    deployment.start(*count)
    ended_s = wait_until(lambda: not is_pending(deployment), LIMIT_S, "all is done", poll_s=0.5)
    table = Table(
        f"{records} records, one bolt away for {seconds:g} s", "replays", "all done, s later", "tuples"
    )
    table.row("both bolts", replays, ended_s - began_s, tuples(deployment))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--records", type=int, default=185)
    asked = parser.parse_args()
    with (
        cluster(asked) as kafka,
        kafka.deployment(TOPOLOGY.format(name=new_name()), {"clicks": 1}) as deployment,
    ):
        measure(kafka, deployment, asked.records, asked.seconds)


if __name__ == "__main__":
    main()
