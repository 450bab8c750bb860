"""Random edges."""

import os

from acktree.core.edges import EdgeSource


def test_edges_are_never_zero_and_differ_after_a_fork() -> None:
    source = EdgeSource()
    assert (source.many(1000) != 0).all()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, b"%d %d" % (source.one(), int(source.many(1)[0])))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = set(map(int, os.read(reader, 200).split()))
    os.close(reader)
    os.close(writer)
    assert theirs.isdisjoint({source.one(), int(source.many(1)[0])})
