"""The search: that it finds what is broken, finds nothing in what is not, and says the same again."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.partition import Partition
from acktree.acker.kafka.ownership import Ownership
from acktree.core.reports.stall_reports import ReportSender
from acktree.producers.collecting.batch import BatchCollector
from acktree.producers.collecting.collector import Collector
from acktree.producers.kafka.inputs import Inputs
from acktree.producers.worker.input_commits import InputCommits
from acktree.testing.kafka.broker.network import Network
from acktree.testing.virtual.kernel import Killed
from acktree.wire.header import ANCHOR_BYTES
from simulation import run as command
from simulation.checker import BrokenPromise
from simulation.fault_plan import CRASH_CALLS, LOST_RESPONSES
from simulation.faults import KINDS, Fault
from simulation.one_seed import run_seed
from simulation.rare_events import missing
from simulation.shrink import shrink
from simulation.state_faults import START_CALLS

pytestmark = pytest.mark.filterwarnings("ignore:coroutine")

SEEDS = range(50, 68)
RARE = ("ack before init", "second init", "failed: timed_out", "acked out of order")


@pytest.fixture(autouse=True)
def _no_logs():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_broken(seeds: range, run: Callable[[int], Any] = run_seed) -> int:
    """Return the first seed that breaks a promise, as ``run`` says."""
    for seed in seeds:
        error = run(seed).error
        if error is not None:
            assert isinstance(error, BrokenPromise), error
            return seed
    pytest.fail(f"none of the seeds {seeds} found the defect")


def test_no_promise_is_broken_and_rare_schedules_happen(monkeypatch):
    counters: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    enter = Network.enter

    def counted(network: Network, call: str) -> None:
        calls[call] += 1
        enter(network, call)

    monkeypatch.setattr(Network, "enter", counted)
    for seed in SEEDS:
        outcome = run_seed(seed)
        assert outcome.error is None, (seed, outcome.error)
        counters += outcome.counters
    assert not [name for name in RARE if not counters[name]], counters
    assert not [call for call in (*CRASH_CALLS, *LOST_RESPONSES, *START_CALLS) if not calls[call]]
    assert sum(1 for name in KINDS if counters[f"fault: {name}"]) > len(KINDS) * 2 // 3


def test_work_after_a_truncation_is_committed_with_its_inputs():
    """An exactly-once worker that had continued in one partition knew no position in the others."""
    plan = [
        Fault("truncate a tuple topic", 60, 0.288, 484, 11.345, "consumer.subscribe"),
        Fault("truncate a tuple topic", 648, 5.185, 295, 9.835, "producer.commit_transaction"),
    ]
    outcome = run_seed(1027, plan)
    assert outcome.counters["tuples truncated"]
    assert outcome.error is None, outcome.error


def test_a_rewind_persists_if_the_driver_that_reads_it_gets_no_answer():
    """Nobody was told of it, so what it asks to be done again was taken for a delay that was not kept."""
    plan = [
        Fault("restart everything in order", 434, 0.268, 67, 31.772, "consumer.revoke"),
        Fault("rewind a running source", 688, 1.025, 4, 0.529, "producer.init_transactions"),
        Fault("lose responses", 942, 1.336, 0, 0.303, "producer.send_offsets_to_transaction"),
        Fault("restart everything in order", 714, 1.966, 791, 0.577, "producer.init_transactions"),
        Fault("lose responses", 599, 4.323, 2, 8.8, "consumer.committed"),
    ]
    outcome = run_seed(1427, plan)
    assert outcome.error is None, outcome.error
    assert outcome.counters["running source rewound"]


def test_the_last_of_several_offsets_set_in_a_row_is_compared_with_the_drivers():
    """A refused skip that was committed once more was taken for what is done."""
    plan = [
        Fault("skip source records", 934, 1.565, 6, 31.479, "producer.produce"),
        Fault("skip source records", 850, 4.654, 373, 17.511, "producer.commit_transaction"),
        Fault("kill everything", 119, 5.81, 256, 9.409, "producer.commit_transaction"),
    ]
    outcome = run_seed(1477, plan)
    assert outcome.error is None, outcome.error
    assert outcome.counters["skip refused"] > 1


def test_a_stage_that_follows_spark_ends_the_transactions_of_its_dead_tasks():
    """They held back the readers of the topics of tuples and inits for five minutes."""
    plan = [Fault("lose the checkpoint", 736, 0.579, 8, 0.501, "consumer.incremental_assign")]
    outcome = run_seed(9, plan)
    assert outcome.error is None, outcome.error


def test_a_set_of_seeds_in_which_something_rare_never_happened_is_void(monkeypatch, capsys):
    monkeypatch.setattr(command, "SET_SEEDS", 2)
    assert command.search(range(2), jobs=1, stop=False) == 1
    assert "the set is void" in capsys.readouterr().out
    assert command.search(range(1), jobs=1, stop=False) == 0
    assert "the set is void" not in capsys.readouterr().out


def test_each_rare_event_and_each_kind_of_fault_is_required():
    everything = dict.fromkeys(missing({}), 1)
    assert not missing(everything)
    for name in ("join", "fault: kill an acker", f"fault: {[*KINDS][-1]}"):
        assert missing({**everything, name: 0}) == [name]


def test_a_seed_gives_the_same_event_log_again():
    for seed in (7, 11):
        assert run_seed(seed).events == run_seed(seed).events


def test_a_failed_tuple_that_is_acked_is_found(monkeypatch):
    monkeypatch.setattr(Collector, "fail", lambda self, tup, reason, **_when: self.ack(tup))
    first_broken(range(200))


def test_a_tuple_that_is_executed_again_without_a_cause_is_found(monkeypatch):
    monkeypatch.setattr(Inputs, "_is_done", lambda self, record: False)
    first_broken(range(100))


def test_a_cut_that_stays_behind_is_found(monkeypatch):
    changed = Ownership._changed_cuts
    monkeypatch.setattr(Ownership, "_changed_cuts", lambda self, *about: changed(self, *about)[2:])
    first_broken(range(100))


def test_a_root_that_times_out_before_its_time_is_found(monkeypatch):
    right = AgeLimits.of_seconds
    halved = classmethod(lambda _cls, message_s, *others: right(message_s / 2, *others))
    monkeypatch.setattr(AgeLimits, "of_seconds", halved)
    first_broken(range(75, 275))  # few roots come near their time-out


def test_a_part_of_a_batch_that_is_neither_acked_nor_failed_is_found(monkeypatch):
    finish = BatchCollector.finish

    def leave_the_last_out(self):
        acked, before = self._collector.sums.acked, len(self._collector.sums.acked)
        finish(self)
        acked[before:] = [done[:-ANCHOR_BYTES] or done for done in acked[before:]]

    monkeypatch.setattr(BatchCollector, "finish", leave_the_last_out)
    first_broken(range(40, 140))  # few systems have a bolt of batches


def test_inputs_that_are_not_read_again_after_an_aborted_transaction_are_found(monkeypatch):
    monkeypatch.setattr(InputCommits, "rewind", lambda self: None)
    first_broken(range(475, 575))  # transactions are short, so few are aborted


def test_a_failing_plan_is_cut_down_to_the_faults_it_needs(monkeypatch):
    def cut_is_lost(self):
        return self.positions

    monkeypatch.setattr(Partition, "cut", property(cut_is_lost))
    kill = Fault("kill everything", at_s=1.0)
    others = [Fault("wait for silence", at_s=0.5, seconds=0.1), Fault("compact the registry", at_s=2.0)]
    seed = next(
        seed
        for seed in range(36, 86)
        if run_seed(seed, []).error is None and run_seed(seed, [kill, *others]).error is not None
    )
    assert shrink(seed, [others[0], kill, others[1]]) == [kill]


def test_an_older_checkpoint_breaks_no_promise():
    broken = [seed for seed in range(4, 12) if run_seed(seed, also=("older checkpoint",)).error is not None]
    assert not broken


def test_a_second_driver_of_a_bolt_breaks_no_promise():
    broken = [seed for seed in (5, 11, 15) if run_seed(seed, also=("second-bolt-driver",)).error is not None]
    assert not broken


def test_no_task_is_left_behind():
    outcome = run_seed(3)
    assert outcome.tasks_left == 0
    assert issubclass(Killed, BaseException)
    assert not issubclass(Killed, Exception), "user code that catches Exception must not survive a kill"


def test_a_process_that_continues_without_one_of_its_threads_is_found(monkeypatch):
    def break_down(_):
        raise ValueError("a defect")

    monkeypatch.setattr(ReportSender, "_run", break_down)
    assert "goes on without a thread" in str(run_seed(0, []).error)


def test_healing_ends_the_first_of_two_processes_of_one_name_that_hold_each_other_up():
    assert run_seed(878, [Fault("start a second process", target=161, at_s=0.903)]).error is None


@pytest.mark.parametrize("seed", [13, 14, 16])
def test_a_second_driver_that_ends_immediately_leaves_nothing_behind(seed: int):
    """The ack of a batch that it did not know of was taken for read, and the record never ended."""
    assert run_seed(seed, [Fault("start a second driver", at_s=0.1)]).error is None
