"""What the state machine recorded, once more through a real broker: the acker is killed where it crashed."""

from itertools import count
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from acker.machine import AckerMachine
from acker.tester import entries, xor
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ID, Ack, AckInit, Fail

RUNS, KILLS = 8, 5


def record_runs():
    """Run the machine a few times, with roots of its own each time; return some: long, failing, crashing."""
    numbers = count()

    class RecordingMachine(AckerMachine):
        recorded: ClassVar = []

        def __init__(self):
            self.first_root = 1 + 10_000 * next(numbers)
            super().__init__()

    phases = settings(
        max_examples=5 * RUNS,
        stateful_step_count=40,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
    )
    run_state_machine_as_test(RecordingMachine, settings=settings(phases, deadline=None))
    longest = sorted(RecordingMachine.recorded, key=lambda run: -len(run.events))
    with_fails = sorted(longest, key=lambda run: -len(broken_in(run.trees)))[:2]
    with_crashes = sorted(longest, key=lambda run: -[kind for kind, _ in run.events].count("crash"))[:2]
    chosen = [*with_fails, *with_crashes, *longest]
    return [run for at, run in enumerate(chosen) if run not in chosen[:at]][:RUNS]


def broken_in(trees):
    """Return the roots that must fail: one did, the init arrived, and the tree is not whole without it."""
    return {
        root for root, tree in trees.items() if tree.fails and tree.arrived.get(0) and not tree.is_whole()
    }


def send(cluster, kind, contents):
    """Append one event's record as a worker would."""
    if kind == "init":
        value = encode_ack_init(AckInit(0, 1, entries((root, xor(*edges)) for root, *edges in contents)))
        cluster.send("ack-init", 0, value)
        return
    roots = [root for root, *_ in contents]
    record = {
        "ack": lambda: Ack("b", 1, entries((root, xor(*edges)) for root, *edges in contents)),
        "fail": lambda: Ack("b", 1, fails=tuple(Fail(root, "broken") for root in roots)),
        "reset": lambda: Ack("b", 1, resets=np.array(roots, ID)),
    }[kind]()
    cluster.send("ack", 0, encode_ack(record))


@pytest.mark.timeout(180)
@pytest.mark.promise("all ackers")
def test_a_real_acker_that_is_killed_gives_the_same_results_for_the_recorded_events(make):
    runs = record_runs()
    cluster = make(ackers=1, timeout_s=60)
    options = {"group.instance.id": "same"}
    member = cluster.start_process(**options).await_ready()
    kills = 0
    for run in runs:
        for kind, contents in run.events:
            if kind != "crash":
                send(cluster, kind, contents)
            elif kills < KILLS:
                cluster.sent()
                member.kill()
                member, kills = cluster.start_process(**options), kills + 1
    trees = {root: tree for run in runs for root, tree in run.trees.items()}
    # The machine has compared its own results with these trees; those of the real acker follow.
    whole = {root for root, tree in trees.items() if tree.is_plain and tree.is_whole()}
    broken = broken_in(trees)
    cluster.await_acked(whole).await_failed(broken)
    assert kills == KILLS
    assert len(whole) > 100
    assert broken
    assert cluster.timed_out == set()
    assert {root for root in cluster.acked if not trees[root].is_whole()} == set()
    assert {root for root in cluster.failed if not trees[root].fails} == set()
