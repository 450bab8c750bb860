"""The collector's arithmetic: every shape of tree folds to 0 when all of it is done, and not before."""

from itertools import permutations

import pytest

from acktree.producers.errors import AckedTwice, EmitAfterAck, NotInHand, ReservedHeader, WrongTopic
from acktree.producers.tuples import Hand, SourceOrigin
from acktree.wire.header import HEADER, decode_header, find_header
from acktree.wire.ids import consumer_edge, fnv1a64
from producers.trees import Net, published


def in_any_order(net: Net, tuples: list, offsets=(0,)) -> None:
    """Ack tuples one by one; the trees must be open until the last one."""
    for tup in tuples:
        assert not all(net.done(offset) for offset in offsets)
        net.ack(tup)
    assert all(net.done(offset) for offset in offsets)


ORDERS = list(permutations(range(3)))


@pytest.mark.parametrize("order", ORDERS)
def test_a_chain_is_done_when_every_link_is_acked_in_any_order(order):
    net = Net(published(one=(["a"], ["b"]), two=(["b"], ["c"]), three=(["c"], [])))
    first = net.take("one", net.spout(0))
    second = net.take("two", net.emit("one", first))
    third = net.take("three", net.emit("two", second))
    in_any_order(net, [[first, second, third][at] for at in order])


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_diamond_is_done_when_all_four_tuples_are_acked_in_any_order(order):
    net = Net(published(left=(["a"], ["l"]), right=(["a"], ["r"]), end=(["l", "r"], [])))
    record = net.spout(0)
    left, right = net.take("left", record), net.take("right", record)
    end_left = net.take("end", net.emit("left", left))
    end_right = net.take("end", net.emit("right", right))
    in_any_order(net, [[left, right, end_left, end_right][at] for at in order])


@pytest.mark.parametrize("order", ORDERS)
def test_a_tuple_emitted_twice_anchored_to_the_same_tuple_waits_for_both_children(order):
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    parent = net.take("one", net.spout(0))
    children = [net.take("two", net.emit("one", parent)) for _ in range(2)]
    in_any_order(net, [[parent, *children][at] for at in order])


@pytest.mark.parametrize("order", ORDERS)
def test_naming_one_anchor_twice_counts_once(order):
    net = Net(published(one=(["a"], ["b", "c"]), two=(["b", "c"], [])))
    parent = net.take("one", net.spout(0))
    first = net.take("two", net.emit("one", [parent, parent], "b"))
    second = net.take("two", net.emit("one", [parent], "c"))
    in_any_order(net, [[parent, first, second][at] for at in order])


@pytest.mark.parametrize("order", ORDERS)
def test_a_join_of_two_roots_holds_both_trees_open(order):
    net = Net(published(join=(["a"], ["b"]), end=(["b"], [])))
    left, right = net.take("join", net.spout(0)), net.take("join", net.spout(1))
    child = net.take("end", net.emit("join", [left, right]))
    assert {anchor.root for anchor in child.anchors} == {left.anchors[0].root, right.anchors[0].root}
    for at in order:
        assert not (net.done(0) and net.done(1))
        net.ack([left, right, child][at])
    assert net.done(0)
    assert net.done(1)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_join_of_two_inputs_of_one_root_has_one_edge_and_waits_for_both(order):
    net = Net(published(fork=(["a"], ["b"]), join=(["b"], ["c"]), end=(["c"], [])))
    root = net.take("fork", net.spout(0))
    left, right = (net.take("join", net.emit("fork", root)) for _ in range(2))
    child = net.take("end", net.emit("join", [left, right]))
    assert len(child.anchors) == 1
    in_any_order(net, [[root, left, right, child][at] for at in order])


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_three_inputs_of_one_root_and_their_child_never_fold_to_zero_early(order):
    net = Net(published(fork=(["a"], ["b"]), join=(["b"], ["c"]), end=(["c"], [])))
    root = net.take("fork", net.spout(0))
    inputs = [net.take("join", net.emit("fork", root)) for _ in range(3)]
    child = net.take("end", net.emit("join", inputs))
    in_any_order(net, [[root, *inputs, child][at] for at in order])


def test_each_input_of_a_join_carries_a_part_of_the_childs_value():
    net = Net(published(fork=(["a"], ["b"]), join=(["b"], ["c"]), end=(["c"], [])))
    root = net.take("fork", net.spout(0))
    inputs = [net.take("join", net.emit("fork", root)) for _ in range(3)]
    net.emit("join", inputs)
    place = (1, root.anchors[0].root)
    for joined in inputs:
        before, own = net.fold[place], consumer_edge(joined.anchors[0].edge, fnv1a64("join"))
        net.ack(joined)
        assert before ^ net.fold[place] != own


def test_a_child_of_a_joined_tuple_carries_each_of_its_roots_once():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    parent = net.take("one", net.spout(0, 1, 2))
    child = net.take("two", net.emit("one", parent))
    assert [a.root for a in child.anchors] == [a.root for a in parent.anchors]
    assert not {a.edge for a in child.anchors} & {a.edge for a in parent.anchors}
    in_any_order(net, [child, parent], offsets=(0, 1, 2))


def test_a_join_of_inputs_with_one_of_several_roots_in_common_closes_all_trees():
    net = Net(published(join=(["a"], ["b"]), end=(["b"], [])))
    wide, narrow = net.take("join", net.spout(0, 1)), net.take("join", net.spout(0))
    child = net.take("end", net.emit("join", [wide, narrow]))
    for tup in (narrow, child):
        net.ack(tup)
        assert not net.done(0)
        assert not net.done(1)
    net.ack(wide)
    assert net.done(0)
    assert net.done(1)


def test_two_bolts_that_read_one_topic_both_own_an_edge():
    net = Net(published(one=(["a"], []), two=(["a"], [])))
    record = net.spout(0)
    in_any_order(net, [net.take("one", record), net.take("two", record)])


def test_a_child_without_a_reader_holds_no_tree_open():
    net = Net(published(one=(["a"], ["b"])))
    parent = net.take("one", net.spout(0))
    record = net.emit("one", parent)
    assert decode_header(find_header(record.headers())).anchors[0].root == parent.anchors[0].root
    in_any_order(net, [parent])


def test_an_unanchored_emission_is_in_no_tree():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    parent = net.take("one", net.spout(0))
    assert net.emit("one", ()).headers() is None
    in_any_order(net, [parent])


def test_a_child_of_an_untracked_tuple_is_untracked():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    untracked = net.take("one", net.spout())
    tracked = net.take("one", net.spout(0))
    assert net.emit("one", untracked).headers() is None
    child = net.take("two", net.emit("one", [untracked, tracked]))
    assert len(child.anchors) == 1
    in_any_order(net, [child, tracked])
    net.ack(untracked)
    assert untracked.origin is None


def test_a_bolt_that_did_not_read_the_topic_when_it_was_emitted_handles_it_untracked():
    net = Net(published(1, one=(["a"], []), late=(["x"], []), other=(["a"], ["x"])))
    record = net.spout(0)
    assert not net.take("late", record).tracked
    assert net.take("one", record).tracked


def test_readers_are_those_of_the_newest_version_at_the_emission():
    net = Net(published(1, one=(["a"], ["b"]), two=(["b"], [])))
    held = net.take("one", net.spout(0))
    old = net.emit("one", held)
    net.history.versions[2] = published(2, one=(["a"], ["b"]), two=(["b"], []), three=(["b"], []))
    net.collectors["three"] = net.make_collector("three")
    for collector in net.collectors.values():
        collector.targets.use_latest()
    new = net.emit("one", held)
    assert not net.take("three", old).tracked
    in_any_order(net, [net.take("two", old), net.take("two", new), net.take("three", new), held])


def test_the_acks_of_one_flush_make_one_record_per_partition():
    net = Net(published(ackers=2, one=(["a"], [])))
    for offset in range(100):
        net.collectors["one"].ack(net.take("one", net.spout(offset)))
    net.collectors["one"].flush()
    assert net.control_records == 2
    assert all(net.done(offset) for offset in range(100))


def test_no_part_of_a_tuples_ack_is_sent_before_its_ack():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    parent = net.take("one", net.spout(0))
    net.emit("one", parent)
    net.collectors["one"].flush()
    assert net.control_records == 0


def test_a_failed_tuple_carries_its_reason_and_acks_nothing():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    tup = net.take("one", net.spout(0, 1))
    net.emit("one", tup)
    net.collectors["one"].fail(tup, "no good")
    before = dict(net.fold)
    net.collectors["one"].flush()
    assert net.failed == [(anchor.root, "no good") for anchor in tup.anchors]
    assert dict(net.fold) == before


def test_a_reset_names_every_root():
    net = Net(published(one=(["a"], [])))
    tup = net.take("one", net.spout(0, 1))
    net.collectors["one"].reset_timeout(tup)
    net.collectors["one"].flush()
    assert sorted(net.resets) == sorted(anchor.root for anchor in tup.anchors)


def test_a_topology_without_ackers_sends_no_control_records():
    net = Net(published(ackers=0, one=(["a"], ["b"]), two=(["b"], [])))
    tup = net.take("one", net.spout(0))
    net.emit("one", tup)
    net.ack(tup)
    assert net.control_records == 0


@pytest.mark.parametrize("verb", ["ack", "fail", "reset_timeout"])
@pytest.mark.parametrize("first", ["ack", "fail"])
def test_a_second_ack_or_fail_of_a_tuple_is_refused(first, verb):
    net = Net(published(one=(["a"], [])))
    collector, tup = net.collectors["one"], net.take("one", net.spout(0))
    calls = {"ack": collector.ack, "fail": lambda t: collector.fail(t, "r"), "reset_timeout": None}
    calls["reset_timeout"] = collector.reset_timeout
    calls[first](tup)
    with pytest.raises(AckedTwice):
        calls[verb](tup)


@pytest.mark.parametrize("several", [False, True])
def test_an_emit_after_the_ack_is_refused(several):
    net = Net(published(one=(["a"], ["b"])))
    tup, other = net.take("one", net.spout(0)), net.take("one", net.spout(1))
    net.ack(tup)
    with pytest.raises(EmitAfterAck):
        net.emit("one", [other, tup] if several else tup)
    assert not net.topics["b"]


@pytest.mark.parametrize("verb", ["ack", "fail", "reset", "emit"])
def test_another_collectors_tuple_is_refused(verb):
    net = Net(published(one=(["a"], ["b"]), two=(["a"], ["c"])))
    stranger, collector = net.take("two", net.spout(0)), net.collectors["one"]
    with pytest.raises(NotInHand):
        {
            "ack": lambda: collector.ack(stranger),
            "fail": lambda: collector.fail(stranger, "r"),
            "reset": lambda: collector.reset_timeout(stranger),
            "emit": lambda: collector.emit(b"", anchors=stranger),
        }[verb]()


def test_calls_for_a_dropped_tuple_do_nothing():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    collector, hand = net.collectors["one"], Hand()
    dropped = net.take("one", net.spout(0), hand)
    collector.drop([dropped])
    for anchors in (dropped, [dropped, dropped], [dropped]):
        collector.emit(b"v", anchors=anchors)
    collector.reset_timeout(dropped)
    collector.ack(dropped)
    collector.fail(dropped, "r")
    collector.flush()
    assert net.control_records == 0
    assert not net.topics["b"]
    assert collector.counters.dropped == 1


def test_an_acked_tuple_leaves_the_hand():
    net = Net(published(one=(["a"], [])))
    hand = Hand()
    tuples = [net.take("one", net.spout(offset), hand) for offset in range(3)]
    net.ack(tuples[1])
    assert list(hand) == [0, 2]


@pytest.mark.parametrize(("emits", "topic"), [(["b"], "c"), (["b", "c"], None), ([], None)])
def test_a_topic_that_the_bolt_does_not_emit_to_is_refused(emits, topic):
    net = Net(published(one=(["a"], emits)))
    tup = net.take("one", net.spout(0))
    with pytest.raises(WrongTopic):
        net.collectors["one"].emit(b"", anchors=tup, topic=topic)


def test_the_reserved_header_is_refused_and_others_are_passed_on():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    parent = net.take("one", net.spout(0))
    with pytest.raises(ReservedHeader):
        net.collectors["one"].emit(b"", anchors=parent, headers=[(HEADER, b"")])
    net.collectors["one"].emit(b"", anchors=parent, headers=[("mine", b"1")])
    child = net.take("two", net.topics["b"][-1])
    assert child.headers == [("mine", b"1")]
    assert child.tracked


def test_a_tuple_has_its_records_fields_and_its_origin():
    net = Net(published(one=(["a"], ["b"]), two=(["b"], [])))
    parent = net.take("one", net.spout(7, 8))
    net.collectors["one"].emit(b"w", anchors=parent, key=b"k")
    child = net.take("two", net.topics["b"][-1])
    fields = (child.value, child.key, child.topic, child.partition, child.offset, child.timestamp_ms)
    assert fields == (b"w", b"k", "b", 0, 0, 5)
    assert child.origin == SourceOrigin("s", "src", 3, 7, 0, topic_id="id")
    assert [origin.offset for origin in child.origins] == [7, 8]
