"""One module reads logs: nobody else assigns partitions to a consumer, or takes what comes of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "producers", "acker_consumer", "spark_app", "console")
CALL = re.compile(
    r"consumer\.(poll|consume|seek|assign|unassign|incremental_assign|incremental_unassign|pause|resume|position)\("
)
READERS = {
    "schemas/acktree/core/kafka/log_reader.py": "the reader",
    "schemas/acktree/core/kafka/clients.py": "how it waits; and why a group gives no answer",
    "schemas/acktree/core/kafka/unreadable.py": "what it finds behind damage",
    "spark_app/acktree/spark/tasks/reading/fetching.py": "records as columns, from queues of the client",
}
MEMBERS = {
    "producers/acktree/producers/stages/stage_worker.py": "shares out tasks by a group, and reads nothing",
    "spark_app/acktree/spark/driver/bolt_driver.py": "serves the client that commits",
    "console/acktree/console/doctor/scratch.py": "tries out a group",
}


def test_only_the_reader_of_logs_reads_logs() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if CALL.search(path.read_text())
    }
    assert found == READERS.keys() | MEMBERS.keys()


def test_only_one_module_reads_headers() -> None:
    """A header whose name is not UTF-8 crashes the client where it is asked for carelessly."""
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\.headers\(\)", path.read_text())
    }
    assert found <= {"schemas/acktree/wire/header.py"}
