"""Operations of producers, idempotent and transactional."""

from typing import Any

from confluent_kafka import KafkaError

from conformance.results import Result, error_result, is_ok, outcome, text, timestamp
from conformance.script import SKIPPED
from conformance.session import LIMIT_S, SHORT_S, Session, Writer

HOUR_MS = 3_600_000
TRANSACTION_TIMEOUT_MS = 3_000
"""A broker looks for such transactions only now and then, by default every 10 s."""
NOT_SENT = (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PART)
"""Errors of the broker's that leave a partition out of the transaction."""


def producer(session: Session, name: str, transactional_id: str | None) -> Result:
    """Make a producer."""
    if name in session.writers:
        return SKIPPED
    settings = {"transactional.id": session.name(transactional_id)} if transactional_id else {}
    session.writers[name] = Writer(session.producer(**settings), transactional_id)
    return "ok"


def impatient_producer(session: Session, name: str, transactional_id: str) -> Result:
    """Make a producer whose transactions run into their timeout; only what waits for that may use it."""
    if name in session.writers:
        return SKIPPED
    settings = {
        "transactional.id": session.name(transactional_id),
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "linger.ms": TRANSACTION_TIMEOUT_MS // 2,
    }
    session.writers[name] = Writer(session.producer(**settings), transactional_id, has_short_timeout=True)
    return "ok"


def wait_out(session: Session, name: str) -> Result:
    """Let an open transaction run into its timeout."""
    writer = session.writers.get(name)
    if writer is None or not writer.has_short_timeout or not writer.touched:
        return SKIPPED
    session.await_markers(writer.touched)
    writer.touched, writer.pending = set(), set()
    return "ok"


def drop_producer(session: Session, name: str) -> Result:
    """End a producer as a crash does: nothing of what is queued is written, a transaction stays open."""
    writer = session.writers.get(name)
    if writer is None:
        return SKIPPED
    writer.client.purge()
    _serve(session, writer)
    session.writers[f"{name}, dropped {len(session.writers)}"] = session.writers.pop(name)
    return _reported(session, writer)


def produce(
    session: Session,
    name: str,
    topic: str,
    partition: int,
    key: str | None,
    value: str | int | None,
    headers: list[list[str | None]] | None,
    hours_ago: int | None,
) -> Result:
    """Queue a record; a number as value is a length in bytes."""
    writer = session.writers.get(name)
    if writer is None:
        return SKIPPED
    if topic not in session.topics and (session.versions.get(topic) or (topic, 0) in writer.known):
        return SKIPPED  # a producer learns bit by bit that a topic is missing
    created = session.created.get(topic, 0)
    if writer.wrote.setdefault(topic, created) != created:
        return SKIPPED  # the numbers of its batches may not fit the new topic
    goes_alone = bool(writer.transactional_id) and (key is None or (topic, partition) not in writer.touched)
    before = []
    if goes_alone and writer.queued:
        # What is refused, or has to ask the broker first, may have others dropped that are on their way.
        before.append(_flush(session, writer))
    number = writer.produced
    writer.produced += 1
    _ask_for(session, writer, topic)

    def on_delivery(error: KafkaError | None, message: Any) -> None:
        # No call here: confluent's client may be about to raise, and a call would find that.
        writer.reports[number] = error, message

    stamp = {} if hours_ago is None else {"timestamp": session.base_ms - hours_ago * HOUR_MS}
    content = b"x" * value if isinstance(value, int) else value
    result = outcome(
        lambda: writer.client.produce(
            session.name(topic),
            content,
            key,
            partition,
            on_delivery=on_delivery,
            headers=None if headers is None else [(name, value) for name, value in headers],
            **stamp,
        )
    )
    if is_ok(result):
        writer.queued.add(number)
        if isinstance(value, int) or topic not in session.topics or goes_alone:
            result.append(_flush(session, writer))
    return [*before, *result]


def _ask_for(session: Session, writer: Writer, topic: str) -> None:
    """Let a producer know the topic as it is now: when it would notice by itself is a matter of time."""
    known = topic, session.versions.get(topic, 0)
    if known not in writer.known:
        writer.known.add(known)
        writer.client.list_topics(session.name(topic), timeout=LIMIT_S)


def _serve(session: Session, writer: Writer) -> None:
    """Get every delivery report that there is or will be."""
    until_s = session.world.monotonic_s() + LIMIT_S
    while writer.queued - writer.reports.keys() and session.world.monotonic_s() < until_s:
        outcome(lambda: writer.client.poll(0.05))


def _reported(session: Session, writer: Writer) -> Result:
    """Return the delivery reports that have come, in the order of the records."""
    found = {}
    for number, (error, message) in sorted(writer.reports.items()):
        place = session.script_name(message.topic()) or "", message.partition()
        if error is None:
            session.appended(place, message.offset() + 1)
        if error is None or (error.code() > 0 and error.code() not in NOT_SENT):
            writer.touched.add(place)
        found[number] = [
            error_result(error),
            *(place if error is None else place[:1]),
            message.offset() if error is None else None,
            text(message.key()),
            text(message.value()),
            timestamp(message.timestamp(), session.base_ms) if error is None else None,
        ]
    writer.queued -= writer.reports.keys()
    writer.reports = {}
    return found


def _await_purge(session: Session, writer: Writer) -> None:
    """Wait until a purge is over: it goes on when the call has returned, and drops what is produced then.

    The thread that purges answers this request, too, and one thing after the other.
    """
    writer.client.list_topics(session.name("nowhere"), timeout=LIMIT_S)


def flush_all(session: Session) -> Result:
    """Write what any producer has queued."""
    return {name: _flush(session, writer) for name, writer in session.writers.items() if writer.queued}


def _flush(session: Session, writer: Writer) -> Result:
    """Flush; after a fatal error, which is raised once, get the reports that came with it."""
    result = outcome(lambda: writer.client.flush(LIMIT_S))
    if not is_ok(result):
        _serve(session, writer)
    return [result, _reported(session, writer), len(writer.queued)]


def flush(session: Session, name: str) -> Result:
    """Write what is queued."""
    writer = session.writers.get(name)
    return SKIPPED if writer is None else _flush(session, writer)


def purge(session: Session, name: str) -> Result:
    """Drop what is queued."""
    writer = session.writers.get(name)
    if writer is None:
        return SKIPPED
    result = outcome(writer.client.purge)
    _await_purge(session, writer)
    _serve(session, writer)
    return [result, _reported(session, writer)]


def init(session: Session, name: str, limit_s: float = LIMIT_S) -> Result:
    """Start a transactional producer, and fence its predecessors; return how far one can read at once."""
    writer = session.writers.get(name)
    if writer is None:
        return SKIPPED
    result = outcome(lambda: writer.client.init_transactions(limit_s))
    if is_ok(result):
        for other in session.writers.values():
            if other is not writer and other.transactional_id == writer.transactional_id:
                result.append(sorted(session.log_ends(other.touched, is_committed_only=True).items()))
                session.await_markers(other.touched)
                other.touched = set()
                other.pending = set()
    return result


def begin(session: Session, name: str) -> Result:
    """Begin a transaction."""
    writer = session.writers.get(name)
    return SKIPPED if writer is None else outcome(writer.client.begin_transaction)


def remember_membership(session: Session, name: str, slot: str) -> Result:
    """Keep what a consumer says about its membership."""
    reader = session.readers.get(name)
    if reader is None:
        return SKIPPED

    def ask() -> None:
        session.memberships[slot] = reader.client.consumer_group_metadata(), reader.group

    return outcome(ask)


def send_offsets(session: Session, name: str, slot: str, places: list[list[Any]]) -> Result:
    """Add offsets to the transaction."""
    writer = session.writers.get(name)
    if writer is None or slot not in session.memberships:
        return SKIPPED
    membership, group = session.memberships[slot]
    offsets = session.partitions(places)
    is_whole = all(partition < session.topics.get(topic, 0) for topic, partition, *_ in places)
    limit_s = LIMIT_S if is_whole else SHORT_S  # librdkafka asks again and again for what is missing
    result = outcome(lambda: writer.client.send_offsets_to_transaction(offsets, membership, limit_s))
    if is_ok(result) or "abort" in result[1]:  # some of them may be accepted
        writer.pending |= {(group, session.place(each)) for each in offsets if each.offset >= 0}
    return result


def commit_transaction(session: Session, name: str, limit_s: float = LIMIT_S) -> Result:
    """Commit; wait until everybody can see it."""
    return _end(session, name, limit_s, is_commit=True)


def abort_transaction(session: Session, name: str) -> Result:
    """Abort; wait until everybody can see it."""
    return _end(session, name, LIMIT_S, is_commit=False)


def _end(session: Session, name: str, limit_s: float, *, is_commit: bool) -> Result:
    writer = session.writers.get(name)
    if writer is None:
        return SKIPPED
    client = writer.client
    call = client.commit_transaction if is_commit else client.abort_transaction
    result = outcome(lambda: call(limit_s))
    if is_ok(result):
        if not is_commit:
            _await_purge(session, writer)
        _serve(session, writer)
        reports = _reported(session, writer)
        session.await_markers(writer.touched)
        ended, writer.pending = writer.pending, set()
        session.await_offsets(ended)
        writer.touched = set()
        return [result, reports]
    if "fatal" in result[1] or "_TIMED_OUT" in result[1]:
        _serve(session, writer)  # the client goes on with what has timed out
    return [result, _reported(session, writer)]
