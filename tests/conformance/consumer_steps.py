"""Operations of consumers that choose their partitions.

Records are in a result only when everything up to the present end of the logs has been returned, partition
by partition: in between, the order of partitions and the size of a batch are a matter of timing.
"""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from conformance.results import Result, error_result, is_ok, outcome, text, timestamp
from conformance.script import SKIPPED
from conformance.session import LIMIT_S, SHORT_S, Reader, Session

POLL_S = 0.05
SESSION_MS = 6000
"""How long a group keeps a static member that has left."""


def consumer(session: Session, name: str, group: str, settings: dict[str, str]) -> Result:
    """Make a consumer."""
    if name in session.readers:
        return SKIPPED
    is_next = settings.get("group.protocol") == "consumer"
    classic = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 150}
    is_committed_only = settings.get("isolation.level", "read_committed") == "read_committed"
    reader = Reader(None, group, is_committed_only, is_next)
    reader.settings = settings
    reader.can_reset = settings.get("auto.offset.reset") != "error"

    def committed(error: KafkaError | None, places: list[TopicPartition]) -> None:
        reader.commits.append([error_result(error), places_of(session, places)])

    reader.client = session.consumer(
        group, on_commit=committed, **{**({} if is_next else classic), **settings}
    )
    session.readers[name] = reader
    return "ok"


def assign(session: Session, name: str, places: list[list[Any]]) -> Result:
    """Assign partitions, each from an offset."""
    reader = session.readers.get(name)
    if reader is None or reader.topics or _is_looked_up_paused(session, reader, places):
        return SKIPPED
    if not reader.can_reset and any(place[1] >= session.topics.get(place[0], 0) for place in places):
        return SKIPPED
    wanted = session.partitions(places)
    result = outcome(lambda: reader.client.assign(wanted))
    if is_ok(result):
        reader.forget(list(reader.assigned))
        reader.assigned = dict.fromkeys(session.place(partition) for partition in wanted)
        if any(_needs_the_log(session, place) for place in places):
            result.append(drain(session, reader))
    return result


def _is_looked_up_paused(session: Session, reader: Reader, places: Sequence[Sequence[Any]]) -> bool:
    """Return whether a paused partition would start where the client looks in the background."""
    return any(
        (topic, partition) in reader.paused and not 0 <= offset <= session.ends.get((topic, partition), 0)
        for topic, partition, offset, *_ in places
    )


def _needs_the_log(session: Session, place: Sequence[Any]) -> bool:
    """Return whether a start depends on where the log begins or ends at present."""
    topic, partition, offset = place[:3]
    start, end = session.starts.get((topic, partition), 0), session.ends.get((topic, partition), 0)
    return bool(offset < start or offset >= end or offset < 0)


def unassign(session: Session, name: str) -> Result:
    """Read nothing any more."""
    reader = session.readers.get(name)
    if reader is None or reader.topics:
        return SKIPPED
    result = outcome(reader.client.unassign)
    reader.forget(list(reader.assigned))
    reader.assigned.clear()
    return result


def assignment(session: Session, name: str) -> Result:
    """Ask a consumer what it reads."""
    reader = session.readers.get(name)
    if reader is None or reader.topics:
        return SKIPPED
    return outcome(lambda: places_of(session, reader.client.assignment()))


def seek(session: Session, name: str, topic: str, partition: int, offset: int) -> Result:
    """Go on from another offset."""
    reader = session.readers.get(name)
    if reader is None or reader.topics:
        return SKIPPED
    if (topic, partition) in reader.assigned and topic not in session.topics:
        return SKIPPED
    if _is_looked_up_paused(session, reader, [(topic, partition, offset)]):
        return SKIPPED
    is_valid = 0 <= offset <= session.ends.get((topic, partition), 0)
    if not reader.can_reset and ((topic, partition) in reader.stuck or not is_valid):
        return SKIPPED
    partitions = session.partitions([(topic, partition, offset)])
    result = outcome(lambda: reader.client.seek(partitions[0]))
    if (topic, partition) in reader.assigned and partition < session.topics[topic]:
        # librdkafka begins to read in the background, and refuses to seek before.
        session.until(lambda: is_ok(result) or is_ok(outcome(lambda: reader.client.seek(partitions[0]))))
        result = ["ok", None]
    if is_ok(result):
        reader.forget([(topic, partition)])
        if _needs_the_log(session, (topic, partition, offset)):
            result.append(drain(session, reader))
    return result


def pause(session: Session, name: str, places: list[list[Any]]) -> Result:
    """Stop reading partitions for now."""
    reader = session.readers.get(name)
    if reader is None or reader.topics:
        return SKIPPED
    known = [[topic, partition] for topic, partition in places if (topic, partition) in reader.ends]
    result = outcome(lambda: reader.client.pause(session.partitions(known)))
    reader.paused |= {(topic, partition) for topic, partition in known}
    return result


def resume(session: Session, name: str, places: list[list[Any]]) -> Result:
    """Read partitions again."""
    reader = session.readers.get(name)
    if reader is None or reader.topics:
        return SKIPPED
    result = outcome(lambda: reader.client.resume(session.partitions(places)))
    reader.paused -= {(topic, partition) for topic, partition in places}
    if is_ok(result) and any((topic, partition) in session.starts for topic, partition in places):
        result.append(drain(session, reader))  # where it stands may be gone
    return result


def take(session: Session, name: str, count: int) -> Result:
    """Read so many records of the first partition that is read, the others being paused."""
    reader = session.readers.get(name)
    if reader is None or reader.topics or reader.is_closed or not reader.active:
        return SKIPPED
    first, *others = reader.active
    paused = session.partitions(others)
    if others:
        reader.client.pause(paused)
        reader.paused |= set(others)
    result = drain(session, reader, count)
    if others:
        reader.client.resume(paused)
        reader.paused -= set(others)
    return [list(first), result]


def read(session: Session, name: str) -> Result:
    """Read everything that is there."""
    reader = session.readers.get(name)
    if reader is None or reader.topics:
        return SKIPPED
    if reader.is_closed:
        return outcome(lambda: reader.client.poll(0))
    return drain(session, reader)


def drain(session: Session, reader: Reader, limit: int | None = None) -> Result:
    """Read until the ends of the logs, or ``limit`` records; return what was read, and where that ends."""
    goals = session.log_ends(reader.active, is_committed_only=reader.is_committed_only)
    waits = session.is_pending(reader.group, reader.active) or (
        reader.is_committed_only and session.is_open(reader.active)
    )
    limit_s = SHORT_S if waits else LIMIT_S
    until_s = session.world.monotonic_s() + limit_s

    def is_done() -> bool:
        if limit is not None and sum(map(len, reader.seen.values())) >= limit:
            return True
        return all(reader.ends.get(place) == end for place, end in goals.items() if place not in reader.stuck)

    is_late = False
    while not is_done() and not is_late:
        message = reader.client.poll(POLL_S)
        receive(session, reader, message)
        if message is not None:
            until_s = session.world.monotonic_s() + limit_s  # there may be more
        is_late = session.world.monotonic_s() >= until_s
    result = collected(session, reader, is_whole=limit is None)
    return {**result, **({"unfinished": True} if is_late else {})}


def collected(session: Session, reader: Reader, *, is_whole: bool) -> Result:
    """Return what a consumer has seen since the last result."""
    found = {f"{topic}/{partition}": records for (topic, partition), records in reader.seen.items()}
    reader.seen = {}
    result: dict[str, Result] = {"records": found}
    if is_whole:
        result["ends"] = {f"{topic}/{number}": end for (topic, number), end in reader.ends.items()}
    errors = {
        f"{topic}/{number}": error
        for (topic, number), error in reader.stuck.items()
        if number < session.topics.get(topic, 0)  # of others, errors come when the client looks for them
    }
    if errors:
        result["errors"] = errors
    return result


def receive(session: Session, reader: Reader, message: Any) -> None:
    """Keep a record, or what an event says."""
    if message is None:
        return
    place = session.script_name(message.topic()) or "", message.partition()
    if reader.topics and place not in reader.assigned:
        return
    error = message.error()
    if error is None:
        record = [
            message.offset(),
            text(message.key()),
            text(message.value()),
            [[name, text(value)] for name, value in message.headers() or ()],
            timestamp(message.timestamp(), session.base_ms),
        ]
        reader.seen.setdefault(place, []).append(record)
    elif error.code() == KafkaError._PARTITION_EOF:
        reader.ends[place] = message.offset()
    elif place[1] < session.topics.get(place[0], 0):
        reader.stuck[place] = error_result(error)


def position(session: Session, name: str, places: list[list[Any]]) -> Result:
    """Ask how far a consumer has read."""
    reader = session.readers.get(name)
    if reader is None or reader.topics:
        return SKIPPED
    mine = [place for place in places if tuple(place) in reader.assigned]
    return outcome(lambda: places_of(session, reader.client.position(session.partitions(mine))))


def watermarks(session: Session, name: str, topic: str, partition: int) -> Result:
    """Ask the broker where a log begins and ends."""
    reader = session.readers.get(name)
    if reader is None:
        return SKIPPED
    place = session.partitions([(topic, partition)])[0]

    def ask() -> Result:
        return outcome(lambda: list(reader.client.get_watermark_offsets(place, timeout=LIMIT_S)))

    if not reader.is_closed and partition < session.topics.get(topic, 0):
        session.until(lambda: is_ok(ask()), SHORT_S)  # a client may believe for a while in an older topic
    return ask()


def cached_watermarks(session: Session, name: str) -> Result:
    """Read everything, then ask the consumer what it knows of the ends of what it reads."""
    reader = session.readers.get(name)
    if reader is None or reader.topics or reader.is_closed:
        return SKIPPED
    result = drain(session, reader)
    if reader.is_committed_only:
        return result  # what is not committed yet moves the end, and nothing says when
    known = {
        f"{topic}/{partition}": outcome(
            lambda: list(
                reader.client.get_watermark_offsets(
                    session.partitions([(topic, partition)])[0],  # noqa: B023
                    cached=True,
                )
            )
        )
        for topic, partition in reader.active
        if (topic, partition) in reader.ends
    }
    return [result, known]


def places_of(session: Session, places: Sequence[TopicPartition] | None) -> Result:
    """Return partitions with offset, metadata and error, in order."""
    if places is None:
        return None
    return sorted(
        [*session.place(place), place.offset, text(place.metadata), error_result(place.error)]
        for place in places
    )
