"""Draws a script from a seed.

A seed allows a random part of the verbs only (swarm testing): with all of them at once, the rare ones would
hardly ever meet each other.
"""

from collections.abc import Callable

from confluent_kafka import OFFSET_END, OFFSET_STORED

from conformance.arguments import (
    CHANGES,
    CONFIGS,
    CONSUMERS,
    GROUPS,
    PRODUCERS,
    TOO_LARGE,
    TOO_LARGE_FOR_TOPIC,
    TOPICS,
    TRANSACTIONAL_IDS,
    Arguments,
)
from conformance.script import MAX_OPERATIONS, Operation, Script


class Generator(Arguments):
    """The operations; each method returns one or a few that belong together."""

    def create_topic(self) -> Script:
        topic = self.random.choice(TOPICS)
        partitions = self.random.randint(1, 3)
        self.partitions.setdefault(topic, partitions)
        return [("create_topic", topic, partitions, self.random.choice(CONFIGS))]

    def grow_topic(self) -> Script:
        topic, partitions = self.topic(), self.random.randint(1, 4)
        if topic in self.partitions:
            self.partitions[topic] = max(partitions, self.partitions[topic])
        return [("grow_topic", topic, partitions)]

    def delete_topic(self) -> Script:
        topic = self.topic()
        self.partitions.pop(topic, None)
        return [("delete_topic", topic)]

    def recreate_topic(self) -> Script:
        topic, partitions = self.topic(), self.random.randint(1, 3)
        self.partitions[topic] = partitions
        return [("delete_topic", topic), ("create_topic", topic, partitions, self.random.choice(CONFIGS))]

    def delete_records(self) -> Script:
        return [("delete_records", *self.place(), self.random.choice([-1, *range(10)]))]

    def list_offsets(self) -> Script:
        spec = self.random.choice(["earliest", "latest", "latest"])
        return [("list_offsets", *self.place(), spec, self.chance(0.5))]

    def describe_topics(self) -> Script:
        return [("describe_topics", self.random.sample(TOPICS, 2))]

    def list_topics(self) -> Script:
        client = self.random.choice(["admin", self.consumer_name(), self.producer_name()])
        return [("list_topics", client, self.random.choice(TOPICS))]

    def describe_configs(self) -> Script:
        return [("describe_configs", *self.configured())]

    def alter_config(self) -> Script:
        kind, name = self.configured()
        return [("alter_config", kind, name, *self.random.choice(CHANGES[kind]))]

    def producer(self) -> Script:
        free = [name for name in PRODUCERS if name not in self.producers]
        if not free:
            return self.produce()
        is_transactional = self.chance(0.6)
        self.producers[free[0]] = is_transactional
        name = self.random.choice(TRANSACTIONAL_IDS) if is_transactional else None
        made: Script = [("producer", free[0], name)]
        return [*made, ("init", free[0])] if is_transactional and self.chance(0.8) else made

    def drop_producer(self) -> Script:
        name = self.producer_name()
        self.producers.pop(name, None)
        return [("drop_producer", name)]

    def _record(self, name: str) -> Operation:
        self.written += 1
        topic, partition = self.place()
        key = self.random.choice([None, f"k{self.random.randrange(3)}", f"k{self.random.randrange(3)}"])
        if key is not None and self.chance(0.5):
            partition = -1
        value: str | int | None = f"v{self.written}"
        if self.chance(0.1):
            value = self.random.choice([None, "", TOO_LARGE_FOR_TOPIC, TOO_LARGE])
        headers = self.random.choice([None, None, [["h", "1"], ["h", None]]])
        hours_ago = self.random.choice([None, None, 1, 5])
        return ("produce", name, topic, partition, key, value, headers, hours_ago)

    def produce(self) -> Script:
        name = self.producer_name(is_transactional=False)
        records: Script = [self._record(name) for _ in range(self.random.randint(1, 4))]
        return [*records, ("flush", name)] if self.chance(0.8) else records

    def flush(self) -> Script:
        return [("flush", self.producer_name())]

    def purge(self) -> Script:
        return [("purge", self.producer_name())]

    def transaction(self) -> Script:
        name = self.producer_name(is_transactional=True)
        found: Script = [("begin", name)] if self.chance(0.95) else []
        for _ in range(self.random.randint(0, 3)):
            found.append(self._record(name))
        if self.chance(0.5):
            found.append(("flush", name))
        if self.slots and self.chance(0.4):
            found.append(("send_offsets", name, self.random.choice(self.slots), self.commits()))
        if self.chance(0.75):
            found.append((self.random.choice(["commit_transaction", "abort_transaction"]), name))
        return found

    def one_transactional_call(self) -> Script:
        verb = self.random.choice(["init", "begin", "commit_transaction", "abort_transaction"])
        return [(verb, self.producer_name(is_transactional=True))]

    def fence(self) -> Script:
        """Start a second producer of a transactional id, and go on with the first."""
        if len(self.producers) == len(PRODUCERS):
            return self.drop_producer()
        first, *more = [name for name in PRODUCERS if name not in self.producers] * 2
        second = next((name for name in more if name != first), first)
        name = self.random.choice(TRANSACTIONAL_IDS)
        self.producers |= {first: True, second: True}
        found: Script = [("producer", first, name), ("init", first)]
        if self.chance(0.8):
            found += [("begin", first), self._record(first), ("flush", first)]
        found += [("producer", second, name), ("init", second)]
        after: list[Operation] = [
            ("begin", first),
            self._record(first),
            ("flush", first),
            ("commit_transaction", first),
            ("abort_transaction", first),
            ("init", first),
        ]
        return [*found, *self.random.sample(after, 3)]

    def expire(self) -> Script:
        """Let a transaction run into its timeout, and go on with its producer."""
        name, transactional_id = "late", "late"
        found: Script = [
            ("drop_producer", name),
            ("impatient_producer", name, transactional_id),
            ("init", name),
        ]
        found += [("begin", name), self._record(name), ("flush", name), ("wait_out", name)]
        after: list[Operation] = [
            ("begin", name),
            self._record(name),
            ("flush", name),
            ("commit_transaction", name),
            ("abort_transaction", name),
            ("init", name),
        ]
        found += self.random.sample(after, self.random.randint(1, 5))
        return [*found, ("wait_out", name), ("drop_producer", name)]

    def send_offsets(self) -> Script:
        if not self.slots:
            return self.remember_membership()
        name = self.producer_name(is_transactional=True)
        return [("send_offsets", name, self.random.choice(self.slots), self.commits())]

    def remember_membership(self) -> Script:
        slot = f"s{len(self.slots)}"
        self.slots.append(slot)
        return [("remember_membership", self.consumer_name(), slot)]

    def consumer(self) -> Script:
        free = [name for name in CONSUMERS if name not in self.consumers]
        if not free:
            return self.read()
        self.consumers.append(free[0])
        settings = {
            "isolation.level": self.random.choice(["read_committed", "read_uncommitted"]),
            "auto.offset.reset": self.reset if self.chance(0.8) else "earliest",
        }
        made: Script = [("consumer", free[0], self.random.choice(GROUPS), settings)]
        return [*made, self._assign(free[0])] if self.chance(0.7) else made

    def close_consumer(self) -> Script:
        name = self.consumer_name()
        closed: Script = [("close_consumer", name)]
        if self.chance(0.8):
            self.consumers = [other for other in self.consumers if other != name]
            closed.append(("remove_consumer", name))
        return closed

    def _assign(self, name: str) -> Operation:
        return ("assign", name, [[*place, self.offset()] for place in self.places()])

    def assign(self) -> Script:
        return [self._assign(self.consumer_name())]

    def unassign(self) -> Script:
        return [("unassign", self.consumer_name())]

    def assignment(self) -> Script:
        return [("assignment", self.consumer_name())]

    def seek(self) -> Script:
        offset = self.offset()
        place = self.place()
        return [("seek", self.consumer_name(), *place, OFFSET_END if offset == OFFSET_STORED else offset)]

    def pause(self) -> Script:
        return [("pause", self.consumer_name(), [list(place) for place in self.places()])]

    def resume(self) -> Script:
        return [("resume", self.consumer_name(), [list(place) for place in self.places()])]

    def take(self) -> Script:
        return [("take", self.consumer_name(), self.random.randint(1, 3))]

    def read(self) -> Script:
        return [("read", self.consumer_name())]

    def position(self) -> Script:
        return [("position", self.consumer_name(), [list(place) for place in self.places()])]

    def watermarks(self) -> Script:
        return [("watermarks", self.consumer_name(), *self.place())]

    def cached_watermarks(self) -> Script:
        return [("cached_watermarks", self.consumer_name())]

    def commit(self) -> Script:
        return [
            (self.random.choice(["commit", "commit", "commit_later"]), self.consumer_name(), self.commits())
        ]

    def committed(self) -> Script:
        return [("committed", self.consumer_name(), [list(place) for place in self.places()])]

    def group(self) -> Script:
        """Let a few members come; what they read, commit and leave is up to the other operations."""
        group, topic = self.random.choice(GROUPS), self.topic()
        protocol = self.random.choice(["classic", "classic", "consumer"])
        found: Script = []
        for name in [name for name in CONSUMERS if name not in self.consumers][: self.random.randint(1, 3)]:
            settings = {"auto.offset.reset": "earliest", "group.protocol": protocol}
            self.consumers.append(name)
            found += [("consumer", name, group, settings), ("subscribe", name, [topic])]
        return [*found, ("read_as_group", group)]

    def static_group(self) -> Script:
        """Let static members come, and a second process with the name of one of them."""
        group, topic = self.random.choice(GROUPS), self.topic()
        found: Script = []
        free = [name for name in CONSUMERS if name not in self.consumers]
        for name in free[: self.random.randint(1, 2)]:
            settings = {
                "auto.offset.reset": "earliest",
                "group.protocol": "classic",
                "group.instance.id": name,
            }
            self.consumers.append(name)
            found += [("consumer", name, group, settings), ("subscribe", name, [topic])]
        if len(free) < 2:
            return found
        if self.chance(0.5):
            found += self.produce()
        if self.chance(0.5):
            found.append(("read_as_group", group))
        other = f"{free[0]}, too"
        self.consumers.append(other)
        return [*found, ("take_over", free[0], other), ("read_as_group", group)]

    def pause_as_group(self) -> Script:
        return [("pause_as_group", self.random.choice(GROUPS), *self.place())]

    def resume_as_group(self) -> Script:
        return [("resume_as_group", self.random.choice(GROUPS))]

    def read_as_group(self) -> Script:
        return [("read_as_group", self.random.choice(GROUPS))]

    def group_assignment(self) -> Script:
        return [("group_assignment", self.random.choice(GROUPS))]

    def describe_group(self) -> Script:
        return [("describe_group", self.random.choice(GROUPS))]

    def delete_group(self) -> Script:
        return [("delete_group", self.random.choice(GROUPS))]

    def listed_offsets(self) -> Script:
        places = [list(place) for place in self.places()]
        return [("listed_offsets", self.random.choice(GROUPS), places)]


WEIGHTS = {
    "create_topic": 1.0, "grow_topic": 0.5, "delete_topic": 0.3, "recreate_topic": 0.5,
    "delete_records": 1.0, "list_offsets": 2.0, "describe_topics": 0.5, "list_topics": 0.7,
    "describe_configs": 0.3, "alter_config": 0.4,
    "producer": 3.0, "drop_producer": 0.5, "produce": 8.0, "flush": 1.0, "purge": 0.5,
    "transaction": 8.0, "one_transactional_call": 1.5, "fence": 1.0, "send_offsets": 1.0,
    "remember_membership": 1.0, "expire": 0.2, "consumer": 3.0, "close_consumer": 0.6, "assign": 3.0,
    "unassign": 0.3, "assignment": 0.3, "seek": 3.0, "pause": 1.0, "resume": 1.0, "take": 3.0,
    "read": 6.0, "position": 1.5, "watermarks": 1.0, "cached_watermarks": 1.0,
    "commit": 4.0, "committed": 3.0, "listed_offsets": 1.0, "describe_group": 0.5, "delete_group": 0.3,
}  # fmt: skip
GROUP_WEIGHTS = {
    "group": 1.5, "static_group": 0.4, "read_as_group": 3.0, "group_assignment": 1.0,
    "pause_as_group": 1.0, "resume_as_group": 0.7,
}  # fmt: skip
ALWAYS = {"create_topic", "producer", "consumer", "produce", "read"}
GROUP_SHARE = 0.2
"""Of the scripts that have group members: a real group takes seconds to settle."""


def generate(seed: int) -> Script:
    """Return the script of a seed."""
    generator = Generator(seed)
    draw = generator.random
    weights = {
        name: weight * draw.choice([0.5, 1.0, 3.0])
        for name, weight in WEIGHTS.items()
        if name in ALWAYS or draw.random() < 0.7
    }
    length = min(MAX_OPERATIONS, int(draw.expovariate(1 / 60)) + 10)
    if draw.random() < GROUP_SHARE:
        weights |= GROUP_WEIGHTS
        length = min(length, 60)
    script: Script = []
    for _ in range(draw.randint(1, 2)):
        script += generator.create_topic()
    script += generator.producer()
    while len(script) < length:
        (name,) = draw.choices(list(weights), list(weights.values()))
        step: Callable[[], Script] = getattr(generator, name)
        script += step()
    return script[:MAX_OPERATIONS]
