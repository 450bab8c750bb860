"""Draws conclusions for acktree from the answers of a broker. Pure; nothing follows from an empty answer."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from acktree.console.doctor.answers import Answer, Conclusion, worst
from acktree.core.topology.plan import SEGMENT, STATE_LIMITS
from acktree.wire.state_records import MAX_STATE_BYTES

APPEND_TIME = "LogAppendTime"
METADATA_CHARS = 4_080
"""The longest metadata of a commit that acktree writes: what a bolt has done above its frontier."""
RECORD_BYTES = 1_000_000
"""The largest record that clients send, acktree's own control records among them."""
NEEDED_COPIES, NEEDED_IN_SYNC = 3, 2
REFUSED_SKEW_MS = 3_600_000
"""Kafka refuses records whose timestamp is an hour ahead of its clock (message.timestamp.after.max.ms)."""
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"

_TIMESTAMP_TYPE = "message.timestamp.type"
_REPLICATED = "replication_factor = 3 and min_insync_replicas = 2 in the topology file, on three brokers"


def of_timestamp(kind: str | None) -> Conclusion:
    """``kind`` is the timestamp type of a record read back from a topic made with LogAppendTime."""
    if kind is None:
        return Conclusion(Answer.NO_ANSWER, "the record was not read back")
    if kind == APPEND_TIME:
        return Conclusion(Answer.WORKS, "the record read back has it")
    return Conclusion(
        Answer.FAILS, f"the record read back has {kind}", f"{_TIMESTAMP_TYPE}=LogAppendTime on control topics"
    )


def of_cleanup(policy: str | None) -> Conclusion:
    """``policy`` is the cleanup policy, read back, of a topic made with cleanup.policy=compact."""
    if not policy:
        return Conclusion(Answer.NO_ANSWER, "the broker does not report the topic's cleanup.policy")
    if policy == "compact":
        return Conclusion(Answer.WORKS, "cleanup.policy=compact is read back")
    return Conclusion(
        Answer.FAILS,
        f"cleanup.policy={policy} is read back",
        "cleanup.policy=compact on T.topology and T.state-SPOUT",
    )


def of_metadata(sent: str, found: str | None) -> Conclusion:
    """``found`` is the metadata of a commit, None if no commit was read back."""
    if found is None:
        return Conclusion(Answer.NO_ANSWER, "no commit was read back")
    if found == sent:
        return Conclusion(Answer.WORKS, "read back unchanged")
    return Conclusion(
        Answer.FAILS,
        f"the {len(found)} characters read back differ from the {len(sent)} sent",
        "offset.metadata.max.bytes=4096 on the brokers",
    )


class Seen(NamedTuple):
    """The records that a read_committed reader saw, and the offset that the transaction committed, if any."""

    committed: bool
    aborted: bool
    offset: int | None


def of_transaction(seen: Seen, sent_offset: int) -> Conclusion:
    """``sent_offset`` is the offset that was sent to the transaction."""
    if seen.aborted:
        return Conclusion(Answer.FAILS, "a reader of committed records saw an aborted one", "another broker")
    if not seen.committed:
        return Conclusion(Answer.NO_ANSWER, "the committed record was not read back")
    if seen.offset is None:
        return Conclusion(Answer.NO_ANSWER, "the committed offset was not read back")
    if seen.offset != sent_offset:
        found = f"offset {seen.offset} is read back in place of {sent_offset}"
        return Conclusion(Answer.FAILS, found, "another broker")
    return Conclusion(Answer.WORKS, "committed records and offsets are there, aborted ones are not")


def of_fencing(wrote: bool) -> Conclusion:
    """``wrote``: whether a producer committed after another one had taken its transactional id."""
    if wrote:
        return Conclusion(Answer.FAILS, "a producer that was replaced still commits", "another broker")
    return Conclusion(Answer.WORKS, "a producer that was replaced is fenced")


def of_size(max_bytes: str | None) -> Conclusion:
    """``max_bytes`` is the topic's max.message.bytes, None if it may not be read; a large record came in."""
    if max_bytes is None:
        return Conclusion(Answer.WORKS, f"a record of {RECORD_BYTES:,} bytes is accepted")
    if int(max_bytes) < RECORD_BYTES:
        advice = f"max.message.bytes={RECORD_BYTES} or more on acktree's topics"
        return Conclusion(Answer.FAILS, f"max.message.bytes={max_bytes}", advice)
    return Conclusion(Answer.WORKS, f"accepted; max.message.bytes={max_bytes}")


def of_topic_id(topic_id: str | None) -> Conclusion:
    """A topic id tells a topic from another one of the same name that replaced it."""
    if topic_id and topic_id != NO_TOPIC_ID:
        return Conclusion(Answer.WORKS, "topics have ids")
    return Conclusion(
        Answer.AT_RISK,
        "topics have no ids: a source topic that is deleted and recreated is taken for the old one",
        "never recreate a source topic under the same name",
    )


def of_skew(sent_ms: int, append_ms: int, acked_ms: int, timeout_s: float) -> Conclusion:
    """The record was sent and acknowledged at these times of this machine's clock, appended at the broker's.

    The skew is only known to lie between the two differences, so what it is at least decides.
    """
    earliest, latest = append_ms - acked_ms, append_ms - sent_ms
    least = max(earliest, -latest, 0)
    found = f"the broker's clock is {earliest:+,} to {latest:+,} ms from this machine's"
    advice = "synchronise the clocks (NTP)"
    if least >= REFUSED_SKEW_MS:
        return Conclusion(Answer.FAILS, found, advice)
    if timeout_s and least > timeout_s * 100:
        return Conclusion(Answer.SLOWER, f"{found}: records may time out and be replayed early", advice)
    return Conclusion(Answer.WORKS, found)


def of_replication(brokers: int | None, copies: int | None, in_sync: int | None) -> Conclusion:
    """Say whether an acknowledged write survives the loss of one broker; None is what is not known."""
    if not copies or brokers == 0:
        return Conclusion(Answer.NO_ANSWER, "the broker does not say where replicas are")
    text = f"replication factor {copies}, min.insync.replicas {'unknown' if in_sync is None else in_sync}"
    found = text if brokers is None else f"{brokers} broker(s), {text}"
    if copies < NEEDED_COPIES or (in_sync is not None and in_sync < NEEDED_IN_SYNC):
        risk = "the death of one broker may lose acknowledged writes"
        return Conclusion(Answer.AT_RISK, f"{found}: {risk}", _REPLICATED)
    if in_sync is None:
        return Conclusion(Answer.NO_ANSWER, found)
    if in_sync >= copies:
        risk = "nothing can be written while one broker is away"
        return Conclusion(Answer.AT_RISK, f"{found}: {risk}", "min.insync.replicas below the factor")
    return Conclusion(Answer.WORKS, found)


def number(text: str | None) -> int | None:
    """Return a setting as a number, None if there is none.

    >>> number("2"), number("-1"), number(None), number("")
    (2, -1, None, None)
    """
    return int(text) if text and text.lstrip("-").isdigit() else None


def of_settings(wanted: Mapping[str, str], found: Mapping[str, str]) -> Conclusion:
    """Compare the settings that acktree gives one of its topics with those it has."""
    return worst([_of_setting(name, value, found.get(name)) for name, value in wanted.items()])


def _of_setting(name: str, wanted: str, found: str | None) -> Conclusion:
    if not found:
        return Conclusion(Answer.NO_ANSWER, f"the broker does not report its {name}")
    held, advice = f"{name}={found}", f"{name}={wanted}"
    if name in ("retention.ms", "min.insync.replicas"):
        at_least, value = number(wanted) or 0, number(found)
        if value is None:
            return Conclusion(Answer.NO_ANSWER, held)
        is_enough = value >= at_least or (name == "retention.ms" and value == -1)
        return Conclusion(Answer.WORKS, held) if is_enough else Conclusion(Answer.AT_RISK, held, advice)
    return Conclusion(Answer.WORKS, held) if found == wanted else Conclusion(Answer.FAILS, held, advice)


def of_own_limits(found: Mapping[str, str]) -> Conclusion:
    """What acktree leaves at the broker's default, and must not be narrower on one of its topics."""
    parts = [of_size(found.get("max.message.bytes") or None)]
    limit = number(found.get("retention.bytes"))
    if limit is not None and limit >= 0 and found.get("cleanup.policy") == "delete":
        text = f"retention.bytes={limit} may delete records before their retention is over"
        parts.append(Conclusion(Answer.AT_RISK, text, "retention.bytes=-1"))
    return worst(parts)


def of_state(found: Mapping[str, str], partitions: int) -> Conclusion:
    """What the topic of a spout's state needs beside its settings."""
    parts = [Conclusion(Answer.WORKS)]
    if partitions != 1:
        text = f"it has {partitions} partitions, and the state is on the first one alone"
        parts.append(Conclusion(Answer.SLOWER, text))
    for name, wanted in STATE_LIMITS.items():
        if (value := number(found.get(name))) is None:
            parts.append(Conclusion(Answer.NO_ANSWER, f"the broker does not report its {name}"))
        elif value < MAX_STATE_BYTES:
            text = f"{name}={value}: the spout stops if its state of one partition grows larger than that"
            parts.append(Conclusion(Answer.AT_RISK, text, f"{name}={wanted}"))
        elif name == SEGMENT and value > wanted:
            text = f"{name}={value}: a start may have to read that many bytes of state"
            parts.append(Conclusion(Answer.SLOWER, text, f"{name}={wanted}"))
    return worst(parts)


def of_dead_letters(limit: int | None, sources: Mapping[str, int | None]) -> Conclusion:
    """A dead letter holds a record only if its topic takes it; limits are max.message.bytes."""
    known = {topic: size for topic, size in sources.items() if size is not None}
    if limit is None or len(known) < len(sources):
        return Conclusion(Answer.NO_ANSWER, "the broker does not report max.message.bytes of each topic")
    larger = [f"{topic} accepts {size:,}" for topic, size in known.items() if size > limit]
    if not larger:
        return Conclusion(Answer.WORKS, "the dead-letter topic accepts what source topics accept")
    text = (
        f"the dead-letter topic accepts {limit:,} bytes, {', '.join(larger)}: dead letters of larger records "
        "lack their content"
    )
    return Conclusion(
        Answer.AT_RISK, text, f"max.message.bytes={max(known.values())} on the dead-letter topic"
    )


def of_elections(found: Mapping[str, str]) -> Conclusion:
    """An unclean leader may lack what the topic has acknowledged."""
    name = "unclean.leader.election.enable"
    if found.get(name) != "true":
        return Conclusion(Answer.WORKS)
    text = f"{name}=true: a broker that lags may drop acknowledged writes"
    return Conclusion(Answer.AT_RISK, text, f"{name}=false")


def of_rights(lacking: Mapping[str, Sequence[str]], named: Collection[str]) -> Conclusion:
    """``lacking`` is what each principal of the ACLs lacks of a role's rights; ``named`` who has the role.

    Without ``named`` a principal that lacks nothing answers; that nobody does proves nothing, as super users
    and roles of other kinds are in no ACL.
    """
    if not lacking:
        return Conclusion(Answer.NO_ANSWER, "there are no ACLs, or there is no authorizer")
    if named:
        missing = {who: lacking.get(who, ("every right",)) for who in named}
        wrong = [f"{who} lacks {_some(what)}" for who, what in missing.items() if what]
        if wrong:
            advice = "acktree acl plan … --execute, unless it is a super user"
            return Conclusion(Answer.FAILS, "; ".join(wrong), advice)
        return Conclusion(Answer.WORKS, f"{', '.join(named)} has them all")
    if able := sorted(who for who, what in lacking.items() if not what):
        return Conclusion(Answer.WORKS, f"{', '.join(able)} has them all")
    who = min(lacking, key=lambda one: len(lacking[one]))
    return Conclusion(Answer.NO_ANSWER, f"no ACLs give them all; {who} lacks {_some(lacking[who])}")


def _some(texts: Sequence[str]) -> str:
    """Return the first few of several texts.

    >>> _some(["a", "b", "c", "d"])
    'a, b and 2 more'
    """
    return ", ".join(texts) if len(texts) < 4 else f"{texts[0]}, {texts[1]} and {len(texts) - 2} more"
