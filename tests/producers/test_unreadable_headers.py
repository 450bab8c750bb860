"""A record with a header whose name is not UTF-8, as clients in C may write it, stops nobody."""

import pytest

from acktree.wire.errors import MalformedRecord
from acktree.wire.header import find_header, read_headers
from producers.cluster import Sink, WorkerCluster, until
from unreadable_headers import write_with_bad_name

pytestmark = pytest.mark.broker


class Kept(Sink):
    def __init__(self) -> None:
        self.values: list[bytes] = []

    def execute(self, tup, emit):
        self.values.append(tup.value)


def test_a_worker_rejects_a_record_with_unreadable_headers_and_continues(cluster: WorkerCluster):
    cluster.apply(sink=(["a"], []))
    bolt = Kept()
    running = cluster.start(bolt, "sink")
    cluster.emit([1], partition=0)
    write_with_bad_name(cluster.bootstrap, cluster.topic("a"), b"foreign")
    cluster.emit([2], partition=0)
    until(lambda: running.error or cluster.committed("sink") == cluster.ends(), "everything committed")
    assert running.error is None
    assert bolt.values == [b"1", b"2"]
    assert running.invalid == 1
    assert not cluster.open_roots()


def test_headers_are_complete_or_refused(cluster: WorkerCluster):
    cluster.apply(sink=(["a"], []))
    write_with_bad_name(cluster.bootstrap, cluster.topic("a"), b"foreign", acktree=b"1")
    cluster.write(b"plain", b"2", 0)
    cluster.write(b"none", None, 0)
    cluster.flush()
    bad, *others = cluster.read(cluster.topic("a"))
    assert bad.value() == b"foreign"
    with pytest.raises(MalformedRecord, match="not UTF-8"):
        read_headers(bad)
    assert [find_header(read_headers(each)) for each in others] == [b"2", None]
