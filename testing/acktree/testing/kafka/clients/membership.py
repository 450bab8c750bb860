"""Simulates a consumer's membership in its group: the part of librdkafka that talks to the coordinator.

Invariant: the coordinator's decisions reach the application only as an event that its next poll serves;
partitions are given up to the group only after that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from acktree.testing.kafka.broker.assignors import Member, Place
from acktree.testing.kafka.broker.groups import (
    HEARTBEAT_S,
    REBALANCE_TIMEOUT_S,
    SESSION_TIMEOUT_S,
    Group,
    Phase,
)
from acktree.testing.kafka.broker.network import Network
from acktree.testing.kafka.broker.transactions import Refused


@dataclass(frozen=True, slots=True)
class Event:
    """Something the application has to serve: assign, revoke, lost or error."""

    kind: str
    places: tuple[Place, ...] = ()
    error: KafkaError | None = None


class Membership:
    """The common part of both protocols."""

    def __init__(
        self,
        network: Network,
        group: Callable[[], Group],
        settings: dict[str, Any],
        notify: Callable[[Event], None],
    ) -> None:
        self._network, self._group, self._settings, self._notify = network, group, settings, notify
        self._kernel = network.kernel
        self._topics: tuple[str, ...] = ()
        self.member_id, self.generation = "", -1
        self.owned: tuple[Place, ...] = ()
        self.is_active = self.is_fatal = False
        self._max_poll_s = float(settings.get("max.poll.interval.ms", 300_000)) / 1000
        self._polled_s = self._kernel.now_s
        self._is_late = False
        self._joins = 0

    def polled(self) -> None:
        """The application has polled."""
        self._polled_s = self._kernel.now_s
        if self._is_late:
            self._is_late = False
            self._join_soon()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group, or join it again for other topics."""
        self._topics = tuple(sorted(topics))
        self.is_active = True
        self._join_soon()

    def _join_soon(self) -> None:
        raise NotImplementedError

    @property
    def _runs(self) -> bool:
        return self.is_active and self._network.process.is_alive

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Do something in the background, later if the process is stopped or the broker away."""

        def attempt() -> None:
            if not self._runs:
                return
            if self._network.process.is_stopped or not self._network.is_up:
                self._kernel.call_after(0.1, attempt)
            else:
                call()

        self._kernel.call_after(delay_s + self._network.delay_s(), attempt)

    def _new_member(self) -> Member:
        self._joins += 1
        instance = self._settings.get("group.instance.id")
        self.member_id = self.member_id or self._draw_member_id()
        assignors = str(self._settings.get("partition.assignment.strategy", "range,roundrobin"))
        return Member(
            self.member_id,
            self._topics,
            float(self._settings.get("session.timeout.ms", 45_000)) / 1000,
            self._max_poll_s,
            instance,
            assignors.split(",")[0],
            str(self._settings.get("client.id", "rdkafka")),
        )

    def _draw_member_id(self) -> str:
        process = self._network.process
        name = self._settings.get("group.instance.id") or process.name
        return f"{name}-{process.number}-{self._kernel.random.getrandbits(32):08x}"

    def _is_poll_late(self) -> bool:
        """Leave the group if the application has not polled for too long."""
        if self._kernel.now_s - self._polled_s <= self._max_poll_s:
            return False
        self._is_late = True
        self._group().leave(self.member_id)
        text = f"Application maximum poll interval ({self._max_poll_s * 1000:g}ms) exceeded"
        self._notify(Event("error", error=KafkaError(KafkaError._MAX_POLL_EXCEEDED, text)))
        self._lose()
        return True

    def _lose(self) -> None:
        self.member_id, self.generation = "", -1
        if self.owned:
            self._notify(Event("lost", self.owned))

    def _fail(self, text: str) -> None:
        """End for good: this client can do nothing in the group any more."""
        self.is_active, self.is_fatal = False, True
        self._notify(Event("error", error=KafkaError(KafkaError._FATAL, text)))  # a message's has no flags

    def served(self, event: Event) -> None:
        """The application has served an event."""
        raise NotImplementedError

    def leave(self) -> None:
        """Say goodbye to the group; a static member goes without."""
        self.is_active = False
        if self.member_id and not self._settings.get("group.instance.id"):
            self._group().leave(self.member_id)


class ClassicMembership(Membership):
    """Rebalances eagerly: everything is given up, then everyone joins again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._beat_s = float(self._settings.get("heartbeat.interval.ms", 3000)) / 1000
        self._is_joining = self._is_revoking = False

    def _join_soon(self) -> None:
        if self.owned and not self._is_revoking:
            self._is_revoking = True
            self._notify(Event("revoke", self.owned))
        elif not self.owned and not self._is_joining:
            self._is_joining = True
            self._after(0.0, self._join)

    def _join(self) -> None:
        group, member = self._group(), self._new_member()
        try:
            group.join(member)
        except Refused as refusal:
            self._is_joining = False
            if self._is_fenced(refusal):
                return
            self._notify(Event("error", error=KafkaError(refusal.code)))
            return
        join = self._joins

        def complete() -> None:
            if self._joins != join or not self._runs:
                return
            if group.members.get(member.member_id) is not member:
                self._is_joining = False
                if not group.is_replaced(member.member_id):
                    self.member_id, self.generation = "", -1
                self._join_soon()
            elif group.phase is not Phase.STABLE:
                group.waiting[complete] = None
            else:
                self._after(0.0, lambda: self._joined(group.generation, member))

        if group.phase is Phase.STABLE:
            complete()
        else:
            group.waiting[complete] = None
            self._kernel.call_after(member.rebalance_s + 1, lambda: complete() if self._is_joining else None)

    def _is_fenced(self, refusal: Refused) -> bool:
        """Fail if another process has joined with this one's ``group.instance.id``."""
        if refusal.code != KafkaError.FENCED_INSTANCE_ID:
            return False
        text = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()
        self._fail(f"Fatal error: {text}: Fatal consumer error: {text}")
        return True

    def _joined(self, generation: int, member: Member) -> None:
        if not self._is_joining or self._group().members.get(member.member_id) is not member:
            return
        self._is_joining = False
        self.generation, self.owned = generation, member.assigned
        self._notify(Event("assign", self.owned))
        self._beat_later()
        if member.topics != self._topics:  # it has subscribed to others meanwhile
            self._join_soon()

    def _beat_later(self) -> None:
        generation = self.generation
        self._after(self._beat_s, lambda: self._beat(generation))

    def _beat(self, generation: int) -> None:
        if generation != self.generation or self._is_poll_late():
            return
        try:
            self._group().heartbeat(self.member_id, generation)
        except Refused as refusal:
            if refusal.code == KafkaError.REBALANCE_IN_PROGRESS:
                if not self._is_revoking and not self._is_joining:
                    self._is_revoking = True
                    self._notify(Event("revoke", self.owned))
            else:
                if not self._is_fenced(refusal):
                    self._lose_and_join()
                return
        self._beat_later()

    def _lose_and_join(self) -> None:
        had = bool(self.owned)
        self._lose()
        if not had:
            self._join_soon()

    def served(self, event: Event) -> None:
        """Join again once everything is given up."""
        if event.kind in ("revoke", "lost"):
            self.owned, self._is_revoking = (), False
            if self.is_active and not self._is_late:
                self._join_soon()


class NextMembership(Membership):
    """KIP-848: the coordinator decides, members give up and get partitions one by one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._is_reconciling = self._has_revoked = False
        self._beats = 0
        self.member_id = self._draw_member_id()  # the client's own choice, and for good

    def _lose(self) -> None:
        member_id = self.member_id
        super()._lose()
        self.member_id = member_id

    def _join_soon(self) -> None:
        self._after(0.0, lambda: self._beat(self._beats))

    def _beat(self, number: int) -> None:
        if number != self._beats:
            return
        self._beats += 1
        if self.generation > 0 and self._is_poll_late():
            return
        group = self._group()
        epoch = max(self.generation, 0)
        member = group.members.get(self.member_id) if epoch else None
        if member is None:
            member = self._new_member()
            member.session_s = (
                float(group.config.get("consumer.session.timeout.ms", 0)) / 1000 or SESSION_TIMEOUT_S
            )
            member.rebalance_s = REBALANCE_TIMEOUT_S
            member.assignor = str(self._settings.get("group.remote.assignor", "uniform"))
        member.topics = self._topics
        try:
            self.generation, target = group.next_heartbeat(member, epoch, frozenset(self.owned))
        except Refused as refusal:
            if refusal.code == KafkaError.UNRELEASED_INSTANCE_ID:
                error = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID)
                text = f"ConsumerGroupHeartbeat fatal error: {error.str()}"
                self._fail(text)
                return
            self._lose()
            if not self.owned:
                self._join_soon()
            return
        self._reconcile(target)
        beat_s = float(group.config.get("consumer.heartbeat.interval.ms", HEARTBEAT_S * 1000)) / 1000
        number = self._beats
        self._after(beat_s, lambda: self._beat(number))

    def _reconcile(self, target: tuple[Place, ...]) -> None:
        if self._is_reconciling:
            return
        mine, wanted = set(self.owned), set(target)
        if gone := tuple(sorted(mine - wanted)):
            self._is_reconciling = True
            self._notify(Event("revoke", gone))
        elif (new := tuple(sorted(wanted - mine))) or self._has_revoked:
            self._has_revoked = False
            self._is_reconciling = True
            self.owned = tuple(sorted(wanted))
            self._notify(Event("assign", new))

    def served(self, event: Event) -> None:
        """Tell the coordinator immediately what has changed."""
        self._is_reconciling = False
        if event.kind in ("revoke", "lost"):
            self.owned = tuple(place for place in self.owned if place not in event.places)
            self._has_revoked = event.kind == "revoke"
        if self.is_active and not self._is_late:
            self._beats += 1
            self._join_soon()
