"""Simulates the group coordinator: members, assignments and committed offsets, for both rebalance protocols.

Invariant: an offset is committed only by a member of the present generation (classic) or in its present epoch
(KIP-848), by anybody while the group is empty, and by nobody else. Members that send nothing for their
session timeout are removed.
"""

from collections.abc import Callable, Iterable
from enum import Enum

from confluent_kafka import KafkaError

from acktree.testing.kafka.broker.assignors import Member, Place, assign
from acktree.testing.kafka.broker.committed import Offsets
from acktree.testing.kafka.broker.log import Transaction
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.virtual.kernel import Kernel, Timer

METADATA_BYTES = 4096
"""offset.metadata.max.bytes of a broker."""
SESSION_TIMEOUT_S, HEARTBEAT_S, REBALANCE_TIMEOUT_S = 45.0, 5.0, 300.0
"""Of a group of KIP-848, as brokers set them by default."""


class Phase(Enum):
    """The phase of a classic group."""

    EMPTY = "empty"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Group:
    """One consumer group."""

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        partitions_of: Callable[[Iterable[str]], dict[str, int]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``changed`` is called when an offset is committed or forgotten."""
        self.name, self._kernel, self._partitions_of = name, kernel, partitions_of
        self.is_incremental = False
        self.has_commits = False
        """Whether anything was ever committed, or held by a transaction."""
        self.config: dict[str, str] = {}
        self.phase = Phase.EMPTY
        self.generation = 0
        """Classic: the generation; KIP-848: the group's epoch."""
        self.members: dict[str, Member] = {}
        self.targets: dict[str, tuple[Place, ...]] = {}
        """KIP-848: what each member shall have."""
        self.offsets = Offsets(changed)
        self.rebalances = 0
        self._replaced: set[str] = set()
        """Classic: members whose ``group.instance.id`` another process has joined with."""
        self._known: dict[str, int] = {}
        self._timer: Timer | None = None
        self.initial_delay_s = 0.0
        self._waits_for_more = False
        self.waiting: dict[Callable[[], None], None] = {}
        """Called once when a generation is complete, then forgotten."""
        self.sync_delay_s: Callable[[], float] = lambda: 0.0

    @property
    def is_known(self) -> bool:
        """Whether the broker knows the group: it has had a member or a commit."""
        return self.has_commits or bool(self.members) or self.generation > 0

    # Both protocols.

    def commit(
        self,
        offsets: Iterable[tuple[str, int, int, str | None, int]],
        member_id: str,
        generation: int,
        by: str,
        transaction: Transaction | None = None,
    ) -> None:
        """Commit, at the end of a transaction if there is one, or raise Refused with the reason."""
        self.check_commit(member_id, generation, in_transaction=transaction is not None)
        for topic, partition, offset, metadata, epoch in offsets:
            self.has_commits = True
            self.offsets.add((topic, partition), offset, metadata, epoch, self._kernel.now_s, by, transaction)

    def check_commit(self, member_id: str, generation: int, *, in_transaction: bool = False) -> None:
        """Raise Refused unless this member, or a stranger to an empty group, may commit."""
        if generation < 0 and (not self.members or (in_transaction and not member_id)):
            return
        member = self._member(member_id)
        if self.is_incremental:
            if generation != member.epoch:
                raise Refused(KafkaError.STALE_MEMBER_EPOCH)
            return
        if generation != self.generation:
            raise Refused(KafkaError.ILLEGAL_GENERATION)
        if self.phase is Phase.SYNCING:
            raise Refused(KafkaError.REBALANCE_IN_PROGRESS)
        member.heard_s = self._kernel.now_s

    def _member(self, member_id: str) -> Member:
        """Return a member, or raise Refused with the reason why it is none any more."""
        if member_id in self._replaced:
            raise Refused(KafkaError.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Refused(KafkaError.UNKNOWN_MEMBER_ID)
        return member

    def is_replaced(self, member_id: str) -> bool:
        """Return whether another process has joined with this member's ``group.instance.id``."""
        return member_id in self._replaced

    def leave(self, member_id: str) -> None:
        """Remove a member that says goodbye."""
        self._remove(member_id)

    def _remove(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is None:
            return
        self._tell()  # one that waits to join learns of its removal immediately
        self.targets.pop(member_id, None)
        if self.is_incremental:
            self._retarget()
        elif not self.members:
            self.generation += 1
            self.phase = Phase.EMPTY
            self._cancel()
        else:
            self._begin_join()

    def _watch(self, member: Member) -> None:
        """Remove a member that was not heard of for its session timeout."""
        member.heard_s = self._kernel.now_s

        def check() -> None:
            if self.members.get(member.member_id) is not member:
                return
            left_s = member.heard_s + member.session_s - self._kernel.now_s
            if left_s <= 0 and not (self.phase is Phase.JOINING and member.has_joined):
                self._remove(member.member_id)
            else:
                self._kernel.call_after(max(left_s, 0.5), check)

        self._kernel.call_after(member.session_s, check)

    def _tell(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for call in waiting:
            call()

    # The classic protocol.

    def join(self, member: Member) -> None:
        """A member asks to take part in the next generation."""
        if self.is_incremental and self.members:
            raise Refused(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        self.is_incremental = False
        if member.member_id in self._replaced:
            raise Refused(KafkaError.FENCED_INSTANCE_ID)
        if (older := self._of_instance(member)) is not None:
            self._replaced.add(older.member_id)
            del self.members[older.member_id]
            if self.phase is Phase.STABLE and older.topics == member.topics:
                member.assigned = older.assigned  # it comes back to what it had, and nobody else notices
                self.members[member.member_id] = member
                self._watch(member)
                return
        known = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if known is not member:
            self._watch(member)
        member.heard_s, member.has_joined = self._kernel.now_s, True
        self._begin_join()

    def _of_instance(self, member: Member) -> Member | None:
        """Return the present member of the same ``group.instance.id`` in another process, None for none."""
        for other in self.members.values():
            if member.instance_id and other.instance_id == member.instance_id:
                return None if other.member_id == member.member_id else other
        return None

    def heartbeat(self, member_id: str, generation: int) -> None:
        """A member is alive; raise Refused where it has to do something."""
        member = self._member(member_id)
        if generation != self.generation:
            raise Refused(KafkaError.ILLEGAL_GENERATION)
        member.heard_s = self._kernel.now_s
        if self.phase is Phase.STABLE and self._partitions_of(self._topics()) != self._known:
            self._begin_join()  # the leader's client has noticed new partitions
        if self.phase in (Phase.JOINING, Phase.SYNCING):
            raise Refused(KafkaError.REBALANCE_IN_PROGRESS)

    def _topics(self) -> list[str]:
        return sorted({topic for member in self.members.values() for topic in member.topics})

    def _begin_join(self) -> None:
        if self.phase is Phase.JOINING:
            self._check_joined()
            return
        was_empty = self.phase is Phase.EMPTY
        self.phase = Phase.JOINING
        self._cancel()
        longest_s = max((member.rebalance_s for member in self.members.values()), default=0.0)
        self._waits_for_more = was_empty and self.initial_delay_s > 0
        wait_s = self.initial_delay_s if self._waits_for_more else longest_s
        self._timer = self._kernel.call_after(wait_s, self._complete_join)
        self._check_joined()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_joined(self) -> None:
        has_all = self.members and all(member.has_joined for member in self.members.values())
        if self.phase is Phase.JOINING and has_all and not self._waits_for_more:
            self._complete_join()

    def _complete_join(self) -> None:
        """Leave out who has not joined, and let the leader's assignment arrive a little later."""
        self._cancel()
        for member in [member for member in self.members.values() if not member.has_joined]:
            del self.members[member.member_id]
        self.generation += 1
        self.rebalances += 1
        if not self.members:
            self.phase = Phase.EMPTY
            return
        self.phase = Phase.SYNCING
        generation = self.generation
        for member in self.members.values():
            member.heard_s, member.has_joined, member.epoch = self._kernel.now_s, False, generation

        def sync() -> None:
            if self.phase is not Phase.SYNCING or self.generation != generation:
                return
            self._known = self._partitions_of(self._topics())
            assigned = assign(self.members.values(), self._known)
            for member in self.members.values():
                member.assigned = tuple(assigned[member.member_id])
            self.phase = Phase.STABLE
            self._tell()

        self._kernel.call_after(self.sync_delay_s(), sync)

    # KIP-848.

    def next_heartbeat(
        self, member: Member, epoch: int, owned: frozenset[Place]
    ) -> tuple[int, tuple[Place, ...]]:
        """Handle a heartbeat; return the member's epoch and what it shall have now.

        ``epoch`` 0 joins. Raises Refused: FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID.
        """
        known = self.members.get(member.member_id)
        if epoch == 0:
            if self.members and not self.is_incremental:
                raise Refused(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
            for other in self.members.values():
                if member.instance_id and other.instance_id == member.instance_id and other is not known:
                    raise Refused(KafkaError.UNRELEASED_INSTANCE_ID)
            self.is_incremental = True
            self.members[member.member_id] = member
            self._watch(member)
            self._retarget()
        elif known is None:
            raise Refused(KafkaError.UNKNOWN_MEMBER_ID)
        elif epoch not in (known.epoch, known.epoch - 1):
            raise Refused(KafkaError.FENCED_MEMBER_EPOCH)
        if self._partitions_of(self._topics()) != self._known:
            self._retarget()
        member.heard_s, member.owned = self._kernel.now_s, owned
        return self._reconcile(member)

    def _retarget(self) -> None:
        self.generation += 1
        self.rebalances += 1
        self._known = self._partitions_of(self._topics())
        assigned = assign(self.members.values(), self._known, self.targets)
        self.targets = {name: tuple(places) for name, places in assigned.items()}

    def _reconcile(self, member: Member) -> tuple[int, tuple[Place, ...]]:
        """Give a member what is its own and free; a partition that another still has comes later."""
        target = frozenset(self.targets.get(member.member_id, ()))
        if not member.owned <= target:  # it has to give something up first, and keeps its epoch until then
            member.assigned = tuple(sorted(member.owned & target))
            if member.epoch == 0:
                member.epoch = self.generation
            return member.epoch, member.assigned
        elsewhere = {
            place
            for other in self.members.values()
            if other is not member
            for place in (*other.owned, *other.assigned)
        }
        member.assigned = tuple(sorted(target - elsewhere))
        member.epoch = self.generation
        return member.epoch, member.assigned
