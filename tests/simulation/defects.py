"""Seeded defects of the product, each a small patch, and how many seeds the search needs to find it.

    python tests/simulation/defects.py [--seeds 300] [--runs 3] [NAME …]

prints, per defect, the median number of seeds until the first broken promise. Every one must be found.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("schemas", "producers", "acker_consumer", "spark_app", "console", "testing")


@dataclass(frozen=True)
class Defect:
    """A piece of a source file, and what a careless engineer would have written instead."""

    name: str
    path: str
    right: str
    wrong: str
    also: tuple[tuple[str, str, str], ...] = ()
    """More replacements (path, right, wrong): other guards of the same promise, which would hold."""

    @property
    def replacements(self) -> tuple[tuple[str, str, str], ...]:
        """All replacements."""
        return ((self.path, self.right, self.wrong), *self.also)


SPARK = "spark_app/acktree/spark"
ACKER, WORKER, WIRE = (
    "acker_consumer/acktree/acker",
    "producers/acktree/producers",
    "schemas/acktree/wire",
)
DEFECTS = (
    Defect(
        "fold a second init",
        f"{ACKER}/kernels/fold.py",
        "                counts[DUPLICATED_INITS] += 1\n                continue\n",
        "                counts[DUPLICATED_INITS] += 1\n                counts[PENDING] -= 1\n",
    ),
    Defect(
        "complete a tree whose init is unknown",
        f"{ACKER}/kernels/fold.py",
        "if value == NOTHING and slots[slot, 2] & INIT_SEEN:",
        "if value == NOTHING:",
    ),
    Defect(
        "add up instead of XOR",
        f"{ACKER}/kernels/fold.py",
        "            value ^= slots[slot, 1]\n            if value == NOTHING and",
        "            value |= slots[slot, 1]\n            if value == NOTHING and",
    ),
    Defect(
        "commit the cut before the results are with the broker",
        f"{ACKER}/kafka/ownership.py",
        "if not offsets or not self._flush():",
        "if not offsets:",
    ),
    Defect(
        "commit the positions instead of the cut",
        f"{ACKER}/folding/partition.py",
        "return self.buckets.cut(self.positions)",
        "return self.positions",
    ),
    Defect(
        "forget a result that was not delivered",
        f"{ACKER}/kafka/result_producer.py",
        "        self._undelivered.append((message.topic(), message.value()))\n",
        "",
    ),
    Defect(
        "never expire a tree",
        f"{ACKER}/folding/partition.py",
        "if not self._expiry.is_due(newest_ms, expired > 0 or has_old_orphans):",
        "if True:",
    ),
    Defect(
        "tell the wrong spout task",
        f"{ACKER}/service.py",
        "self.latest.result_topic(result.spout_task)",
        "self.latest.result_topic(0)",
    ),
    Defect(
        "skip the committed cut after a rebalance",
        f"{ACKER}/kafka/ownership.py",
        "{place: cut.end or OFFSET_BEGINNING for place, cut in cuts.items()}",
        "dict.fromkeys(cuts, -1)",
    ),
    Defect(
        "one edge for all readers of a record",
        f"{WIRE}/ids.py",
        "    for bolt_hash in reader_hashes:\n        value ^= mix(edge ^ bolt_hash)\n    return value",
        "    for bolt_hash in reader_hashes[:1]:\n        value ^= mix(edge ^ bolt_hash)\n    return value",
    ),
    Defect(
        "ack a failed tuple",
        f"{WORKER}/collecting/collector.py",
        '        if self._finish(tup, "fail"):\n            tup._state = FAILED\n            self.fails.pack(tup, reason, retry_after_ms, stack)\n',
        "        self.ack(tup)\n",
    ),
    Defect(
        "ack what an AsyncBolt has raised for",
        f"{WORKER}/worker/executing/async_execution.py",
        "            elif error is not None:\n                fail(tup, error, collector)\n",
        "            elif error is not None:\n                collector.ack(tup)\n",
    ),
    Defect(
        "ack a batch that has raised",
        f"{WORKER}/worker/executing/batch_execution.py",
        "            self._batch.discard()\n            cut_traceback(error)\n            return error",
        "            self._batch.finish()\n            return None",
    ),
    Defect(
        "leave the children out of the ack",
        f"{WORKER}/collecting/collector.py",
        "                if target.hashes:\n                    deferred.append(",
        "                if not target.topic:\n                    deferred.append(",
    ),
    Defect(
        "leave the offsets out of the transaction",
        f"{WORKER}/kafka/exactly_once.py",
        "            if offsets:\n",
        "            if len(offsets) > 99:\n",
    ),
    Defect(
        "forget what is done above a committed offset",
        f"{WORKER}/kafka/inputs.py",
        "return above is not None and above.holds(record.offset() or 0)",
        "return False",
    ),
    Defect(
        "commit as a stranger to the group",
        f"{WORKER}/kafka/exactly_once.py",
        "                group = consumer.consumer_group_metadata()\n",
        "                group = consumer.consumer_group_metadata()\n                group.member_id, group.generation = '', -1\n",
    ),
    Defect(
        "use the root ids of the last start again",
        f"{WORKER}/spouts/task_commits.py",
        "before._replace(term=before.term + 1, driver=driver, run=next_run(before.run))",
        "before._replace(term=before.term + 1, driver=driver, sequence=0)",
    ),
    Defect(
        "commit no message numbers ahead of their use",
        f"{WORKER}/spouts/task_commits.py",
        "state = self.state._replace(sequence=end, next_offset=next_offset)",
        "state = self.state._replace(sequence=self.sequences.next, next_offset=next_offset)",
    ),
    Defect(
        "send half of what belongs together",
        f"{WORKER}/collecting/transactional.py",
        "        for child in group.children:\n",
        "        for child in group.children[:1]:\n",
    ),
    Defect(
        "keep records of a revoked partition",
        f"{WORKER}/kafka/inputs.py",
        "        self._waiting = deque(record for record in self._waiting if place_of(record) not in cleared)",
        "        _ = cleared",
    ),
    Defect(
        "choose the acker by the newest version",
        f"{WORKER}/collecting/arithmetic/packing.py",
        "            published = self._history.at(version)\n            if not published.ackers:",
        "            published = self._history.latest\n            if not published.ackers:",
    ),
    Defect(
        "commit what was produced for lost partitions",
        f"{WORKER}/worker/loop.py",
        "                self._commits.drop(places)\n            self.output.must_abort = True\n",
        "                self._commits.drop(places)\n",
    ),
    Defect(
        "one part of a joined child for all its parents",
        f"{WORKER}/collecting/arithmetic/ack_sums.py",
        "            value ^= part\n",
        "",
    ),
    Defect(
        "commit what is emitted as the frontier",
        f"{WORKER}/ledger/slot_states.py",
        "        ledger.frontier,\n        ledger.next_offset,\n        ledger.floor,\n",
        "        ledger.next_offset,\n        ledger.next_offset,\n        ledger.floor,\n",
    ),
    Defect(
        "commit the view before the state",
        f"{WORKER}/spouts/driver/spout_commits.py",
        "        self._store(self._records(self.planned), is_due)\n        frontiers = {",
        "        frontiers = {",
        also=(
            (
                f"{WORKER}/spouts/driver/spout_commits.py",
                "            self._viewed = (frontiers, positions)\n",
                "            self._viewed = (frontiers, positions)\n"
                "        self._store(self._records(self.planned), is_due)\n",
            ),
        ),
    ),
    Defect(
        "take a late view for a rewind",
        f"{WORKER}/spouts/driver/offset_resets.py",
        "            if entry.seal is not None or task is None:\n",
        "            if task is None:\n",
    ),
    Defect(
        "fence no driver",
        f"{WORKER}/spouts/state_topic.py",
        "transactional_id=owner, linger_ms=0",
        'transactional_id=f"{owner}-{world.random_bits(32)}", linger_ms=0',
    ),
    Defect(
        "plan a batch on a state that holds it",
        f"{WORKER}/spouts/driver/spout_commits.py",
        "        self._store(state)\n        self._number =",
        "        self._store(self._records(self._number + 1))\n        self._number =",
    ),
    Defect(
        "commit result positions ahead of their effect",
        f"{WORKER}/spouts/driver/spout_results.py",
        "            self._commits.positions[number].read = next_offset\n",
        "            self._commits.positions[number].read = next_offset + 1\n",
    ),
    Defect(
        "call a driver open before its start is whole",
        f"{WORKER}/spouts/driver/spout_driver.py",
        "        committed = commits.take_over(topics.partitions, logged)\n",
        "        committed = commits.take_over(topics.partitions, logged)\n        self.is_open = True\n",
    ),
    Defect(
        "take an empty poll for the end of the state",
        f"{WORKER}/spouts/state_topic.py",
        "            for log_range in reader.read(MAX_RECORDS, 1.0):\n",
        "            if not (ranges := reader.read(MAX_RECORDS, 1.0)):\n                return\n"
        "            for log_range in ranges:\n",
    ),
    Defect(
        "store no attempts",
        f"{WORKER}/ledger/slot_states.py",
        "        _attempts(ledger, now_s),\n",
        "        [],\n",
    ),
    Defect(
        "store no blocks",
        f"{WORKER}/ledger/slot_states.py",
        "[EmittedBlocks(each.start, each.end, each.size, each.run) for each in ledger.blocks.ranges],",
        "[],",
    ),
    Defect(
        "do not store which batch is planned",
        f"{WORKER}/spouts/driver/spout_commits.py",
        "return self._records(self._number + 1)",
        "return self._records(0)",
    ),
    Defect(
        "restore nothing of what is done above the frontier",
        f"{WORKER}/ledger/slot_states.py",
        "    ledger.done = offsets_of(state.done)\n",
        "",
    ),
    Defect(
        "count results of runs before a rewind",
        f"{WORKER}/ledger/partitions/partition.py",
        "        counted = run_at_least(generations >> 4, self.floor)\n",
        "        counted = generations > 0\n",
        also=(
            (
                f"{WORKER}/ledger/task.py",
                "            known = (slots == slot) & is_run_between(generations >> 4, ledger.floor, ledger.run)\n",
                "            known = slots == slot\n",
            ),
        ),
    ),
    Defect(
        "take a failed record for a done one",
        f"{WORKER}/ledger/partitions/partition.py",
        "        for each in block or (offset,):\n            if self.is_open(generation, each):\n",
        "        self._finish(self._open(BitMap64(block or (offset,))))\n"
        "        for each in block or (offset,):\n            if self.is_open(generation, each):\n",
    ),
    Defect(
        "finish a block by the ack of a replay of its first record",
        f"{WORKER}/ledger/partitions/blocks.py",
        "        if found is None or generation != generation_of(found.run, 0):\n",
        "        if found is None:\n",
    ),
    Defect(
        "replay the first record alone of a failed block",
        f"{WORKER}/ledger/partitions/partition.py",
        "        for each in block or (offset,):\n            if self.is_open(generation, each):\n",
        "        for each in (offset,):\n            if self.is_open(generation, each):\n",
    ),
    Defect(
        "reject all records of a block",
        f"{WORKER}/ledger/partitions/partition.py",
        "        if is_rejected and not is_alone:\n",
        "        if False:\n",
    ),
    Defect(
        "finish an exhausted record without a dead letter",
        f"{WORKER}/spouts/driver/spout_results.py",
        "self._commits.commit_dead_letters([letter for letter in letters if letter is not None])",
        "self._commits.commit_dead_letters([])",
    ),
    Defect(
        "treat a rejected root as a plain failure",
        f"{WORKER}/ledger/task.py",
        "is_rejected=when_ms == NEVER and not is_open,",
        "is_rejected=False,",
    ),
    Defect(
        "drop the delay",
        f"{WORKER}/ledger/task.py",
        "after_s=when_ms / 1000 - age_s if when_ms >= 0 else None,",
        "after_s=None,",
    ),
    Defect(
        "forget what a failed row says",
        f"{SPARK}/tasks/writing/failed_rows.py",
        "        return RootFailure(reason, rules.of_call(True if retry is None else retry, after_s)), False\n",
        "        return RootFailure(reason), False\n",
    ),
    Defect(
        "let the first failed row of a record win",
        f"{SPARK}/tasks/writing/anchoring.py",
        "    if known is None or stronger(known.retry_after_ms, failure.retry_after_ms) != known.retry_after_ms:\n",
        "    if known is None:\n",
        also=(
            (
                f"{SPARK}/tasks/writing/anchoring.py",
                "            _add_failure(failed, root, failure)\n    return failed",
                "            failed.setdefault(root, failure)\n    return failed",
            ),
        ),
    ),
    Defect(
        "forget in the acker what a bolt said of a root",
        f"{ACKER}/folding/reasons.py",
        "batch.reason(row)[:MAX_TEXT], int(batch.retries[row]), failed)",
        "batch.reason(row)[:MAX_TEXT], BACK_OFF, failed)",
    ),
    Defect(
        "write a rejected record twice to the dead letters",
        f"{WORKER}/spouts/driver/spout_results.py",
        "self._commits.commit_dead_letters([letter for letter in letters if letter is not None])",
        "self._commits.commit_dead_letters([letter for letter in letters * 2 if letter is not None])",
    ),
    Defect(
        "commit a dead letter before the state of its record",
        f"{WORKER}/spouts/driver/spout_commits.py",
        "        self._dead_letters += letters\n        self._store(self._records(self.planned))\n",
        "        self._topic.commit({}, letters)\n        self._store(self._records(self.planned))\n",
    ),
    Defect(
        "ignore an operator's rewind",
        f"{WORKER}/ledger/partitions/partition.py",
        "            self.discard_from(offset)\n",
        "            pass\n",
    ),
    Defect(
        "take what was not read for absent",
        f"{SPARK}/tasks/reading/read_task.py",
        "        _send_absent(range_, range_.result_topic, absent[~is_lost], is_lost=False)\n",
        "        absent = wanted[-1:] if len(wanted) > 1 else absent[~is_lost]\n"
        "        _send_absent(range_, range_.result_topic, absent, is_lost=False)\n",
    ),
    Defect(
        "keep a revoked partition paused",
        f"{WORKER}/kafka/inputs.py",
        "        self.back_pressure.resume(places)\n",
        "        self.back_pressure.paused -= set(places)\n",
    ),
    Defect(
        "write half of the rows",
        f"{SPARK}/tasks/writing/write_task.py",
        "            updates += writer.write(batch)\n        check_input_is_whole()",
        "            updates += writer.write(batch[: (len(batch) + 1) // 2])\n        check_input_is_whole()",
    ),
    Defect(
        "send the inits of half the roots",
        f"{SPARK}/tasks/writing/write_task.py",
        "    for updates in folded:\n        acker_updates.send(updates)\n    output.flush_and_commit()",
        "    for updates in folded:\n        acker_updates.send(RootUpdates(updates.version, updates.entries[::2]))\n"
        "    output.flush_and_commit()",
    ),
    Defect(
        "commit a task whose input was cut off",
        f"{SPARK}/runtime/whole_input.py",
        "    if not has_end_marker(_worker_stream()):",
        "    if False:",
    ),
    Defect(
        "execute again what is done above the frontier",
        f"{WORKER}/kafka/inputs.py",
        "above is not None and above.holds(record.offset() or 0)",
        "False",
    ),
    Defect(
        "commit a cut only when it has moved far",
        f"{ACKER}/kafka/ownership.py",
        "owned.partition.cut == owned.committed:",
        "owned.partition.cut[1] - owned.committed[1] < 3:",
    ),
    Defect(
        "commit offsets before the children are with the broker",
        f"{WORKER}/kafka/at_least_once.py",
        "        self._control.drain()\n        self.drain()\n        return not offsets or commit_offsets(consumer, offsets, None if in_callback else self._may_wait)",
        "        done = not offsets or commit_offsets(consumer, offsets, None if in_callback else self._may_wait)\n"
        "        self._control.drain()\n        self.drain()\n        return done",
    ),
    Defect(
        "do not read inputs again after an aborted transaction",
        f"{WORKER}/worker/input_commits.py",
        '            log_retry(log, "%s; its inputs are read again", error, action="aborted")\n            self.rewind()\n',
        '            log_retry(log, "%s; its inputs are read again", error, action="aborted")\n',
    ),
    Defect(
        "go on after a revocation has aborted the transaction",
        f"{WORKER}/worker/input_commits.py",
        '            log.warning("%s; the next owner reads them again", error, extra={"action": "aborted"})\n'
        "            self.must_rewind = True\n",
        '            log.warning("%s; the next owner reads them again", error, extra={"action": "aborted"})\n',
    ),
    Defect(
        "neither ack nor fail a part of a batch",
        f"{WORKER}/collecting/batch.py",
        '        collector.sums.acked.append(b"".join(done))\n',
        '        collector.sums.acked.append(b"".join(done[:-1] or done))\n',
    ),
    Defect(
        "time out in half of the time",
        f"{ACKER}/folding/expiry.py",
        "        return cls(1000 * message_s or inf,",
        "        return cls(500 * message_s or inf,",
    ),
    Defect(
        "time out in twice the time",
        f"{ACKER}/folding/expiry.py",
        "        return cls(1000 * message_s or inf,",
        "        return cls(2000 * message_s or inf,",
    ),
    Defect(
        "let a waiting tuple age",
        f"{ACKER}/service.py",
        "timed_out = partition.expire(self._wall_ms(), clocks_ms)",
        "timed_out = partition.expire(self._wall_ms())",
    ),
    Defect(
        "take the bolt that is ahead for the clock",
        f"{ACKER}/folding/work_clock.py",
        "min((now_ms, *(worked.get(bolt, NEVER_MS) for bolt in self._bolts[spout])))",
        "min(now_ms, max((worked.get(bolt, NEVER_MS) for bolt in self._bolts[spout]), default=now_ms))",
    ),
    Defect(
        "let a driver of all tasks go on beside a task",
        f"{WORKER}/spouts/driver/owners.py",
        "return self._task is None or owner is None or ",
        "return self._task is None or (owner is not None) and ",
        also=(
            (
                f"{WORKER}/spouts/driver/group_offsets.py",
                "if seal is not None and term is not None and seal.term > term:",
                "if False:",
            ),
        ),
    ),
    Defect(
        "read no further once the other owners are fenced",
        f"{WORKER}/spouts/state_topic.py",
        "                self._read(reader, states, self._start())  # to the last commit of each\n",
        "",
    ),
    Defect(
        "wait for results of what has moved to another task",
        f"{WORKER}/spouts/driver/spout_sources.py",
        "                if self._commits.keeps(task.sources[number]):\n",
        "                if True:\n",
    ),
    Defect(
        "begin no run with a start",
        f"{WORKER}/spouts/driver/spout_sources.py",
        "                    ledger.begin_run()\n",
        "                    pass\n",
    ),
    Defect(
        "leave the last outcome of an AsyncBolt in hand",
        f"{WORKER}/worker/executing/async_execution.py",
        "        while self._ended:\n",
        "        while len(self._ended) > 1:\n",
    ),
)


def seeds_to_detection(defect: Defect, seeds: int, first: int) -> int | None:
    """Return after how many seeds from ``first`` on a promise was broken, None if none was."""
    with tempfile.TemporaryDirectory() as folder:
        for source in SOURCES:
            shutil.copytree(ROOT / source, Path(folder, source), ignore=shutil.ignore_patterns("__pycache__"))
        for name, right, wrong in defect.replacements:
            path = Path(folder, name)
            text = path.read_text()
            assert text.count(right) == 1, f"{defect.name}: the patch does not fit {name} any more"
            path.write_text(text.replace(right, wrong))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(folder, s)) for s in SOURCES)}
        command = [sys.executable, str(Path(__file__).with_name("run.py")), "--stop", "--jobs", "1"]
        command += ["--seeds", str(seeds), "--first", str(first)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = re.findall(r"^seed (\d+): (.*)$", done.stdout, re.MULTILINE)
        if not found and done.returncode:
            raise RuntimeError(f"{defect.name}: {done.stderr[-2000:]}")
        if not found:
            return None
        number = min(int(seed) for seed, _ in found) - first + 1
        print(f"    {number}: {found[0][1][:150]}", flush=True)
        return number


def main() -> int:
    """Run the command; status 1 if a defect was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    known = [defect.name for defect in DEFECTS]
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"unknown defect {unknown[0]!r}: it must be one of\n  " + "\n  ".join(known))
    missed = 0
    for defect in DEFECTS:
        if arguments.names and defect.name not in arguments.names:
            continue
        found = [seeds_to_detection(defect, arguments.seeds, 100_000 * run) for run in range(arguments.runs)]
        numbers = [number for number in found if number is not None]
        text = f"{statistics.median(numbers):g}" if numbers else f"not found in {arguments.seeds}"
        missed += len(numbers) < len(found)
        print(f"{defect.name}: {text}", flush=True)
    print(f"{missed} of {len(DEFECTS)} not found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
