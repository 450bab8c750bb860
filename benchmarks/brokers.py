"""What `acktree doctor` says of brokers of several versions: python benchmarks/brokers.py 3.9.1 4.3.0

Each is one broker from its jars, which are fetched, with the settings of `acktree broker`.
"""

import subprocess
import sys

from acktree.console.devbroker import jars
from acktree.console.devbroker.broker import LocalBroker
from acktree.console.devbroker.owner import leaving_on_signals
from harness import ACKTREE

LIMIT_S = 300


def main(versions: list[str]) -> None:
    for version in versions:
        jars.KAFKA_VERSION = version
        jars.COORDINATES = (f"org.apache.kafka:kafka_2.13:{version}", *jars.COORDINATES[1:])
        with leaving_on_signals(), LocalBroker() as broker:
            command = [ACKTREE, "doctor", "-b", broker.bootstrap]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        print(f"Kafka {version}\n{done.stdout}{done.stderr}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
