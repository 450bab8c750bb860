"""What a bolt that nobody serves for some minutes costs: replays, and executions by the bolt beside it.

    python benchmarks/stopped_bolt.py [-b HOST:PORT] [--seconds 170] [--records 185]

Runs an acker, a Spark application and two bolts that read the same topic, all as processes of their own. One
bolt is killed before the records come, and started again at the end.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.devbroker.broker import LocalBroker

ACKTREE = Path(sys.executable).with_name("acktree")
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
JOBS = """
from acktree.producers import BasicBolt

def parse(clicks):
    return clicks.select("value", "anchors")

class Archive(BasicBolt):
    def execute(self, tup, emit):
        pass
"""


class Run:
    """The processes of one topology, started in a folder, and what is in its topics."""

    def __init__(self, stack: ExitStack, bootstrap: str, name: str) -> None:
        self.stack, self.bootstrap, self.name = stack, bootstrap, name
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"{name}.bench", "enable.partition.eof": True}
        )
        stack.callback(self._consumer.close)

    def command(self, *arguments: str) -> list[str]:
        return [str(ACKTREE), *arguments, "-b", self.bootstrap]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process and wait until it says that it is ready; it is killed in the end."""
        log = self.folder / f"{'-'.join(arguments)}.log".replace(":", "-")
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command(*arguments, "--topology", self.name), cwd=self.folder, stdout=file, stderr=file
            )
        self.stack.callback(process.kill)
        while b"ready" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        return process

    def tuples(self) -> int:
        """Return how many tuples are in the topic of the bolts, without the markers of transactions."""
        self._consumer.assign([TopicPartition(f"{self.name}.parsed", 0, 0)])
        found = 0
        while (message := self._consumer.poll(10)) is not None and message.error() is None:
            found += 1
        return found

    def pending(self) -> bool:
        ended = subprocess.run(
            self.command("pending", "list", "--topology", self.name, "--format", "json"),
            capture_output=True,
            text=True,
            check=False,
        )
        return bool(json.loads(ended.stdout)["pending"])

    def describe(self) -> None:
        ended = subprocess.run(
            self.command("describe", "--topology", self.name), capture_output=True, text=True, check=False
        )
        print(f"describe, exit code {ended.returncode}:\n{ended.stdout}")


def measure(run: Run, records: int, seconds: float) -> None:
    name = run.name
    (run.folder / "jobs.py").write_text(JOBS)
    (run.folder / "topology.toml").write_text(TOPOLOGY.format(name=name))
    admin = AdminClient({"bootstrap.servers": run.bootstrap})
    admin.create_topics([NewTopic(f"{name}.clicks", 1)])[f"{name}.clicks"].result()
    subprocess.run(run.command("topology", "apply", "topology.toml"), cwd=run.folder, check=True)
    run.start("acker", "run")
    run.start("spark", "run", "jobs:parse", "--spout", "clicks")
    run.start("bolt", "run", "jobs:Archive", "--bolt", "archive")
    run.start("bolt", "run", "jobs:Archive", "--bolt", "count").send_signal(signal.SIGKILL)
    producer = Producer({"bootstrap.servers": run.bootstrap})
    for number in range(records):
        producer.produce(f"{name}.clicks", b"click %d" % number)
    producer.flush()
    time.sleep(seconds)
    run.describe()
    print(f"{run.tuples() - records} replays of {records} records after {seconds:g} s")
    began_s = time.monotonic()
    run.start("bolt", "run", "jobs:Archive", "--bolt", "count")
    while run.pending():
        time.sleep(0.5)
    print(f"all done {time.monotonic() - began_s:.1f} s after the bolt was started again")
    print(f"{run.tuples()} tuples executed by each of the two bolts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-b", "--bootstrap-server")
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--records", type=int, default=185)
    options = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = options.bootstrap_server or stack.enter_context(LocalBroker()).bootstrap
        measure(Run(stack, bootstrap, f"stopped{int(time.time())}"), options.records, options.seconds)


if __name__ == "__main__":
    main()
