"""Runs random scripts on the simulated and on a real Kafka, and shows where their results differ.

python tests/conformance/run.py --scripts 1000
"""

import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

import click
from confluent_kafka.admin import AdminClient

from acktree.console.devbroker.broker import LocalBroker

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from conformance.comparison import Difference, compare
from conformance.generator import generate
from conformance.script import Script, shrink

PROGRESS_S = 10.0
BROKER = {
    # By default a broker looks only every 10 s for transactions that have run into their timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # On a busy machine it is late, and must not lose its partitions' leadership for that.
    "broker.session.timeout.ms": "60000",
    "file.delete.delay.ms": "1000",
}


class Run:
    """Compares scripts seed by seed, in several threads: most of their time they wait for the broker."""

    def __init__(self, bootstrap: str, seeds: Iterator[int]) -> None:
        self._bootstrap, self._seeds = bootstrap, seeds
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self._lock = Lock()
        self.scripts = self.operations = 0
        self.differences: dict[int, Difference] = {}

    def compare(self, script: Script) -> Difference | None:
        """Compare one script, under names that nobody else uses."""
        return compare(script, self._bootstrap, self._admin, f"conformance-{uuid.uuid4().hex[:12]}")

    def work(self) -> None:
        """Compare scripts until there is none left."""
        while True:
            with self._lock:
                seed = next(self._seeds, None)
            if seed is None:
                return
            script = generate(seed)
            difference = self.compare(script)
            with self._lock:
                self.scripts += 1
                self.operations += len(script)
                if difference is not None:
                    self.differences[seed] = difference
                    click.echo(f"\nseed {seed}, {difference.results}\n")

    def shrink(self, seed: int) -> Difference:
        """Return the difference of a seed in a script that is as short as possible."""
        found = self.differences[seed]

        def fails(script: Script) -> bool:
            nonlocal found
            difference = self.compare(script)
            if difference is None or difference.operation[0] != found.operation[0]:
                return False
            found = difference
            return True

        shrink(found.script[: found.index + 1], fails)
        return found


@click.command(help=__doc__)
@click.option("--scripts", default=1000, show_default=True, help="How many scripts.")
@click.option("--seed", default=0, show_default=True, help="The first seed.")
@click.option("--jobs", default=32, show_default=True, help="How many scripts at a time.")
@click.option("--shrunk", default=3, show_default=True, help="How many differences are shrunk.")
@click.option("--bootstrap-server", help="A real Kafka; without it, one is started for the run.")
def main(scripts: int, seed: int, jobs: int, shrunk: int, bootstrap_server: str | None) -> None:
    """Run the command."""
    started_s = time.monotonic()
    with ExitStack() as running:
        bootstrap = bootstrap_server or running.enter_context(LocalBroker(settings=BROKER)).bootstrap
        run = Run(bootstrap, iter(range(seed, seed + scripts)))
        with ThreadPoolExecutor(jobs) as pool:
            workers = [pool.submit(run.work) for _ in range(jobs)]
            shown_s = started_s
            while not all(worker.done() for worker in workers):
                time.sleep(0.1)
                if time.monotonic() - shown_s > PROGRESS_S:
                    shown_s = time.monotonic()
                    click.echo(f"{run.scripts} of {scripts} scripts, {run.operations} operations")
            for worker in workers:
                worker.result()
        for failed in sorted(run.differences)[:shrunk]:
            click.echo(f"\nseed {failed}, shrunk:\n{run.shrink(failed)}")
    taken_s = time.monotonic() - started_s
    click.echo(
        f"{run.scripts} scripts, {run.operations} operations, {len(run.differences)} with a difference, "
        f"{taken_s:.0f} s"
    )
    sys.exit(bool(run.differences))


if __name__ == "__main__":
    main()
