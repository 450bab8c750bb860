"""A process of Spark keeps what it made, and nothing that it inherited by a fork."""

import os

from acktree.spark.shared.per_process import PerProcess


def test_the_order_of_settings_does_not_matter():
    kept: PerProcess[object] = PerProcess()
    first = kept.get(object, "broker", {"a": "1", "b": "2"})
    assert kept.get(object, "broker", {"b": "2", "a": "1"}) is first
    assert kept.get(object, "broker", {"a": "1"}) is not first


def test_a_fork_inherits_nothing_and_its_parent_keeps_all():
    kept: PerProcess[object] = PerProcess()
    first = kept.get(object, "broker")
    child = os.fork()
    if child == 0:
        is_new = kept.get(object, "broker") is not first and list(kept.pop_oldest()) != [first]
        os._exit(0 if is_new else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert kept.get(object, "broker") is first


def test_the_oldest_entries_are_evicted_to_make_room():
    kept: PerProcess[str] = PerProcess()
    for name in ("one", "two", "three"):
        kept.get(lambda name=name: name, name)
    assert list(kept.pop_oldest(3)) == ["one"]
    assert list(kept.pop_oldest()) == ["two", "three"]
