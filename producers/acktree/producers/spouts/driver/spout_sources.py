"""Keeps the partitions that a spout reads up to date with its topology and its topics.

Invariant: if a log ends before the emitted offsets, the slot's new run and where it begins are committed
immediately: knowledge of the old records must not apply to new ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from acktree.core.topology.registry import Registry
from acktree.core.topology.retry_policy import retry_policy
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.slot_states import ledger_of
from acktree.producers.ledger.slots import find_ledger, find_task
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.producers.spouts.driver.group_offsets import CommittedOffset
from acktree.producers.spouts.driver.offset_resets import OffsetResets
from acktree.producers.spouts.driver.sources.log_bounds import check_leaders, is_removed, with_newer_leader
from acktree.producers.spouts.driver.sources.source_topics import SpoutTopics, VanishedPartition
from acktree.producers.spouts.driver.sources.source_watch import SourceWatch
from acktree.producers.spouts.driver.spout_commits import SpoutCommits
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.wire.errors import AcktreeError
from acktree.wire.state_records import LogEpoch


class TasksChanged(AcktreeError):
    """Other tasks of a spout have its partitions now, or their topic was recreated; the task restarts."""


class SpoutSources:
    """The source partitions of a spout and the version of the topology that it follows."""

    def __init__(
        self,
        options: SpoutOptions,
        registry: Registry,
        watch: SourceWatch,
        topics: SpoutTopics,
        tasks: Mapping[int, TaskLedger],
        commits: SpoutCommits,
        follow_results: Callable[[Iterable[int]], None],
        resets: OffsetResets,
        monotonic: Callable[[], float],
    ) -> None:
        """Begin with ``topics``; ``follow_results`` is called with tasks that a newer version adds."""
        self._options, self._registry, self._watch = options, registry, watch
        self._tasks, self._commits, self._follow_results = tasks, commits, follow_results
        self._resets, self._monotonic = resets, monotonic
        self.topics, self.topology = topics, registry.history.latest
        self._late: tuple[SourceSlot, ...] = ()
        """Partitions without a state that have had no leader so far: nobody knows where they begin."""

    def initial(self) -> tuple[SourceSlot, ...]:
        """Return the partitions that have been there from the first version on.

        Where other tasks have begun before a task does, these begin where ``startingOffsets`` says.
        """
        versions = self._registry.history.versions
        first = min(number for number, each in versions.items() if self._options.spout in each.spouts)
        known = {slot.slot for slot in versions[first].slots}
        return tuple(source for source in self.topics.partitions if source.slot in known)

    def is_removed(self, source: SourceSlot, offset: int) -> bool:
        """Return whether retention has removed the record of an offset that is not there."""
        return is_removed(self.topics, self._options, source, offset)

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last record that a read_committed reader may see.

        Raises:
            MissingTopic, DataLoss: a topic was deleted or recreated, and failOnDataLoss is true.
        """
        try:
            return self.topics.log_ends()
        except VanishedPartition:
            self.check_now()
            return self.topics.log_ends()

    def go_back_to_ends(self) -> None:
        """If a log ends, or has ended, before what is emitted of it, continue there, if the options allow it.

        From here on the present leaders' logs are those that were read.
        """
        beyond = self._watch.beyond_ends(self.topics, self._next_offsets(), self._ends_of_state())
        for slot, end in beyond.items():
            self.go_back(slot, end)
        for slot, end in self.check_leaders().items():
            self.go_back(slot, end)
        self.keep_epochs()

    def check_leaders(self) -> dict[int, int]:
        """Return what ``check_leaders`` of the log bounds does, by the leaders that were found last."""
        return check_leaders(self.topics, self._options, self._ends_of_state(), self._epochs())

    def keep_epochs(self) -> None:
        """Keep whose logs were found last: what is planned from here on is read of them.

        ``follow_ends``, or ``go_back_to_ends``, has found that they hold what was read before.
        """
        for slot, ledger in self._ledgers().items():
            if (found := self.topics.epochs.get(slot)) is not None:
                ledger.saw(found)

    def go_back(self, slot: int, end: int) -> None:
        """Emit again, in another run, what may be another record now that a log has ended at ``end``."""
        task = find_task(self._tasks, slot)
        assert task is not None, "every slot that is read has its task"
        ledger = task.slots[slot]
        self._commits.drop_unlogged()
        if ledger.end_of_state > end:
            task.counters["lost"] += ledger.open_from(end)
            ledger.discard_from(min(end, ledger.frontier))
        else:
            ledger.renew()
        ledger.epoch = ledger.epoch.below(end)
        self._commits.commit()  # immediately: old bits must not stand for new records

    def follow_ends(self, ends: Mapping[int, int]) -> None:
        """Where a log ends before what is emitted of it, or has another leader, find out why."""
        if any(offset > ends.get(slot, offset) for slot, offset in self._next_offsets().items()):
            self.check_now()
            self.go_back_to_ends()
        elif with_newer_leader(self.topics, self._epochs()):
            self.go_back_to_ends()

    def check_now(self) -> None:
        """Check the topics, whatever the time; raises what ``check`` raises."""
        self._watch.check_next_time()
        self.check()

    def check(self) -> None:
        """Apply what was published and which partitions were added since.

        Raises:
            MissingTopic, DataLoss, UnknownPartition: see SourceWatch.
        """
        is_due = self._watch.is_due(self.topology.version)
        topics = self._watch.changed_topics(self.topics, self.topology.version, self._next_offsets())
        if topics is not None:
            self._adopt(topics)
        elif is_due and self._late:
            self._add_new(self._late)

    def _next_offsets(self) -> dict[int, int]:
        return {slot: ledger.next_offset for slot, ledger in self._ledgers().items()}

    def _ends_of_state(self) -> dict[int, int]:
        return {slot: ledger.end_of_state for slot, ledger in self._ledgers().items()}

    def _epochs(self) -> dict[int, LogEpoch]:
        return {slot: ledger.epoch for slot, ledger in self._ledgers().items()}

    def _ledgers(self) -> dict[int, PartitionLedger]:
        return {slot: ledger for task in self._tasks.values() for slot, ledger in task.slots.items()}

    def _adopt(self, topics: SpoutTopics) -> None:
        """Go on with a newer version, or with new partitions: these begin at their first offset.

        Raises TasksChanged: this driver has one task, and has to begin anew, as its partitions have changed.
        """
        latest, spout = self._registry.history.latest, self._options.spout
        if self._options.task is not None and latest.spout_tasks[spout] != self.topology.spout_tasks[spout]:
            raise TasksChanged(
                f"spout {spout} distributes its tasks differently since version {latest.version}"
            )
        ids = {source.topic: source.topic_id for source in topics.partitions}
        sources = (source for task in self._tasks.values() for source in task.sources.values())
        recreated = {each.topic for each in sources if ids.get(each.topic, each.topic_id) != each.topic_id}
        if self._options.task is not None and recreated:  # who executes its records forgets them by this
            raise TasksChanged(f"spout {spout} begins {min(recreated)} anew: the topic was recreated")
        self.topics, self.topology = topics, latest
        block = self._options.block_of(self.topology.spouts[self._options.spout])
        if new := set(self._options.tasks_of(self.topology)) - set(self._commits.positions):
            self._commits.join(new)
            self._follow_results(sorted(new))
        policy = retry_policy(self.topology, self._options.spout)
        known: set[int] = set()
        for task in self._tasks.values():
            task.message_timeout_s = self.topology.message_timeout_s
            for slot, source in list(task.sources.items()):
                if source.topic in recreated:
                    task.drop(slot)
                    continue
                task.slots[slot].policy, task.slots[slot].block = policy, block
                known.add(slot)
            task.left = task.slots.keys() - topics.task_of.keys()
        fresh = [source for source in topics.partitions if source.slot not in known]
        self._add_new(fresh)

    def _add_new(self, fresh: Sequence[SourceSlot]) -> None:
        """Add partitions that this driver did not have, each at its first offset unless it has a state."""
        moved = self._commits.moved(fresh)
        restored = self.add(fresh, moved, self.topics.log_starts(fresh))
        self.begin_runs(restored)
        self._resets.apply({slot: entry for slot, entry in moved.items() if slot in restored})
        self._commits.commit()

    def add(
        self,
        sources: Sequence[SourceSlot],
        committed: Mapping[int, CommittedOffset],
        starts: Mapping[int, int],
        *,
        is_first: bool = False,
        age_s: float = 0.0,
    ) -> set[int]:
        """Add partitions as their state says; without one they begin where the group is, or at ``starts``.

        Without a state and a start they wait for a leader, and are added later.

        What somebody else has set in the group is obeyed by the rule for resets, at the very first start in
        any case. What is in flight counts as emitted ``age_s`` ago. Returns the slots that have a state, in
        which nothing that somebody has set is applied yet.
        """
        restored, late = set[int](), list[SourceSlot]()
        policy = retry_policy(self.topology, self._options.spout)
        block = self._options.block_of(self.topology.spouts[self._options.spout])
        for source in sources:
            task = self._tasks.get(self.topics.task_of[source.slot]) or next(iter(self._tasks.values()))
            if (state := self._commits.take_state(source)) is not None:
                restored.add(source.slot)
                ledger = ledger_of(state, policy, self._monotonic(), block, age_s)
            elif source.slot not in starts:
                late.append(source)
                continue
            else:
                start = starts[source.slot]
                if (entry := committed.get(source.slot)) and self._begins_at(source, entry, start, is_first):
                    start = entry.next_offset
                ledger = PartitionLedger(start, start, self._commits.first_run(), policy, block)
            task.sources[source.slot], task.slots[source.slot] = source, ledger
        self._late = tuple(late)
        return restored

    def begin_runs(self, restored: set[int]) -> None:
        """Begin a run of each slot that has a state, and deal all slots to the tasks of this version.

        What earlier owners have in flight, with results that were not or will not be read, is emitted again.
        """
        for task in self._tasks.values():
            for number in task.slots.keys() & restored:
                ledger = task.slots[number]
                if self._commits.keeps(task.sources[number]):
                    ledger.begin_run()
                else:
                    ledger.renew()
        for slot in self.topology.slots_of(self._options.spout):
            if (known := find_ledger(self._tasks, slot.slot)) is not None:
                known.deal_to(self.topology.task_of(slot))

    def _begins_at(self, source: SourceSlot, entry: CommittedOffset, start: int, is_first: bool) -> bool:
        """Return whether a partition without a state begins where the group is."""
        if entry.seal is not None:
            return entry.seal.topic_id == source.topic_id
        return is_first or self._resets.is_obeyed(source, entry.next_offset, start)
