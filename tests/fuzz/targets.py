"""What comes from outside: control records, headers, metadata, files, requests. Each is a function of bytes.

Invariant: a target raises only where the product breaks its promise. Any bytes are refused with the error
that is documented, or make a value that is encoded to something that decodes to the same value.
"""

import asyncio
import base64
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import numpy as np
from starlette.types import Message, Scope

from acktree.console.page.app import StatusPage
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.core.errors import BadTopology, BrokerUnreachable
from acktree.core.reports.stats import decode_report
from acktree.core.topology.file import Topology, parse_topology
from acktree.core.topology.registry import History, Published, Slot
from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.collecting.arithmetic.done_above import decode_done, decode_owner, encode_done
from acktree.producers.ledger.logged_batch import CheckpointMismatch, PlannedBatch
from acktree.producers.ledger.slot_states import ledger_of, state_of
from acktree.wire import codec, state_records
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.commit_metadata import seal
from acktree.wire.control_records import Ack, AckInit
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import decode_header, encode_header

FRONTIER = 40


KINDS: tuple[tuple[Callable[[bytes], Any], Callable[[Any], bytes]], ...] = (
    (codec.decode_ack_init, codec.encode_ack_init),
    (codec.decode_ack, codec.encode_ack),
    (codec.decode_result, codec.encode_result),
    (codec.decode_absent, codec.encode_absent),
    (codec.decode_replay_command, codec.encode_replay_command),
)
FRAMES = (
    codec.ACK_INIT_FRAME,
    codec.ACK_FRAME,
    codec.RESULT_FRAME,
    codec.ABSENT_FRAME,
    codec.REPLAY_COMMAND_FRAME,
    b"",
)
GOOD_INIT, GOOD_ACK = (
    codec.encode_ack_init(AckInit(1, 1, np.zeros(1, "<u8,<u8"))),
    codec.encode_ack(Ack("b", 1)),
)


def plain(record: Any) -> list[Any]:
    """Return the fields of a record as values that can be compared."""
    fields = [getattr(record, name) for name in record.__slots__]
    return [field.tolist() if isinstance(field, np.ndarray) else field for field in fields]


def records(data: bytes) -> None:
    """Decode a control record by all decoders, the compiled ones too; the first byte chooses the frame."""
    if not data:
        return
    value = FRAMES[data[0] % len(FRAMES)] + data[1:]
    found: dict[int, Any] = {}
    for number, (decode, encode) in enumerate(KINDS):
        try:
            found[number] = decode(value)
        except MalformedRecord:
            continue
        assert plain(decode(encode(found[number]))) == plain(found[number])
    inits = decode_init_batch([GOOD_INIT, value, GOOD_INIT])
    assert inits.faults.tolist() == [0, 0 if 0 in found else 1, 0]
    if 0 in found:
        rows = inits.entries[inits.starts[1] : inits.starts[2]]
        same = [inits.tasks[1], inits.versions[1], [tuple(row) for row in rows.tolist()]]
        assert same == plain(found[0])
    acks = decode_ack_batch([GOOD_ACK, value, GOOD_ACK])
    assert acks.faults.tolist() == [0, 0 if 1 in found else 1, 0]
    if 1 in found:
        fails = range(acks.fail_starts[1], acks.fail_starts[2])
        same = [found[1].task, acks.versions[1]]
        same += [[tuple(row) for row in acks.acks[acks.ack_starts[1] : acks.ack_starts[2]].tolist()]]
        about = (acks.fail_roots, acks.retries)
        same += [
            tuple((about[0][row], acks.reason(row), about[1][row], acks.failed_tuple(row)) for row in fails)
        ]
        assert [*same, acks.resets[acks.reset_starts[1] : acks.reset_starts[2]].tolist()] == plain(found[1])


def header(data: bytes) -> None:
    """Decode the header of a tuple."""
    try:
        found = decode_header(data)
    except MalformedRecord:
        return
    assert encode_header(*found) == data


def sealed(data: bytes, tag: str, about: str = "") -> str:
    """Return text as a group may hold it: as it is, with a true checksum, or packed as well."""
    text = data[1:].decode("utf-8", "replace")
    match data[:1]:
        case b"s":
            return seal(tag, *text.split("|"), about=about)
        case b"b":
            return (
                seal(tag, data[1], base64.b64encode(data[2:]).decode(), about=about) if len(data) > 1 else ""
            )
        case b"d":
            packed = base64.b64encode(zlib.compress(data[1:])).decode()
            return seal(tag, 8 * len(data), packed, "", about=about)
    return text


STATES: tuple[tuple[bytes, Callable[[bytes], Any], Callable[[Any], bytes]], ...] = (
    (state_records.SPOUT_STATE_FRAME, state_records.decode_spout_state, state_records.encode_spout_state),
    (state_records.SLOT_STATE_FRAME, state_records.decode_slot_state, state_records.encode_slot_state),
    (state_records.STATE_START_FRAME, state_records.decode_state_start, state_records.encode_state_start),
    (b"", state_records.decode_slot_state, state_records.encode_slot_state),
    (state_records.TASK_STATE_FRAME, state_records.decode_task_state, state_records.encode_task_state),
)
POLICY, NOW_S = RetryPolicy(1.0, 10.0, 3), 1.0


def states(data: bytes) -> None:
    """Decode a record of a state topic, its key or a seal, and restore the ledger of a slot."""
    if not data:
        return
    frame, decode, encode = STATES[data[0] % len(STATES)]
    offset_seal(data)
    with suppress(MalformedRecord):
        assert state_records.decode_slot_key(data).encode() == data
    try:
        found = decode(frame + b"\2" + data[1:] if frame else data[1:])
    except MalformedRecord:
        return
    assert decode(encode(found)) == found
    if isinstance(found, state_records.SlotState):
        with suppress(MalformedRecord):
            state_of(ledger_of(found.aged(7), POLICY, NOW_S), NOW_S)


def offset_seal(data: bytes) -> None:
    """Read the seal of a committed offset."""
    text = sealed(data, state_records.SEAL, str(FRONTIER))
    if (found := state_records.seal_in(text, FRONTIER)) is not None:
        assert state_records.seal_in(found.text(FRONTIER), FRONTIER) == found


def bolt_metadata(data: bytes) -> None:
    """Decode the metadata of a bolt's commit."""
    text = sealed(data, "acktree-bolt-1", f"{FRONTIER}|")
    found, owner = decode_done(text, FRONTIER), decode_owner(text, FRONTIER)
    if found is not None and found.open:
        again = encode_done(FRONTIER, found.end, sorted(found.open), owner)
        if len(found.open) < found.end - FRONTIER:
            assert decode_done(again, FRONTIER) == found
        assert decode_owner(again, FRONTIER) == owner


def topology(data: bytes) -> None:
    """Parse a topology file."""
    try:
        found = parse_topology(data.decode("utf-8", "replace"))
    except BadTopology:
        return
    assert Topology.model_validate_json(found.model_dump_json()) == found


class RegistryRecord:
    """A record of the registry topic."""

    def __init__(self, data: bytes) -> None:
        self._value = data

    def key(self) -> bytes:
        return b"1"

    def value(self) -> bytes:
        return self._value

    def offset(self) -> int:
        return 0


def registry(data: bytes) -> None:
    """Add a record to the versions of a topology."""
    history = History("t")
    history.add(RegistryRecord(data))  # type: ignore[arg-type]
    for found in history.versions.values():
        assert Published.model_validate_json(found.model_dump_json()) == found


def report(data: bytes) -> None:
    """Decode a report of a process."""
    try:
        found = decode_report(data)
    except MalformedRecord:
        return
    assert repr(decode_report(found.encode())) == repr(found)


def offsets(data: bytes) -> None:
    """Read the offset of a batch, as Spark's checkpoint has it."""
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError):  # Spark's own reader
        return
    try:
        found = PlannedBatch.from_json(loaded)
    except CheckpointMismatch:
        return
    assert repr(PlannedBatch.from_json(json.loads(json.dumps(found.to_json())))) == repr(found)


class NoCluster:
    """A cluster that knows its topology and answers nothing else."""

    topology = Published(
        name="t",
        spouts={"lines": {"topics": ("in",)}},
        version=1,
        spout_tasks={"lines": (0,)},
        slots=(Slot(slot=0, spout="lines", topic="in", topic_id="id", partition=0),),
    )

    def __getattr__(self, name: str) -> Any:
        raise BrokerUnreachable(f"nobody answers {name}")


async def _read(_frame: Frame, query: Callable[[Any], Any]) -> Any:
    return query(NoCluster())


class LonelyFrame(Frame):
    """A frame whose pages read no broker."""

    read = _read  # type: ignore[assignment]


def _make_page() -> Any:
    status = StatusPage(PageSettings("127.0.0.1:1", "t", {}, None, True))
    status.topologies[0].frame.__class__ = LonelyFrame
    return status.make_app()


async def _request(app: Any, scope: Scope, body: bytes) -> list[Message]:
    sent: list[Message] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


PATHS = ("/trace", "/trace.json", "/pending", "/pending.json", "/replay", "/login", "/dead-letters/", "/")
_page: list[Any] = []


def page(data: bytes) -> None:
    """Send a request to the page: a path, a query, a cookie, a form."""
    if not _page:
        _page.append(_make_page())
    head, _, body = data.partition(b"\n")
    start, _, cookie = head.partition(b"\t")
    path, _, query = (PATHS[start[0] % len(PATHS)].encode() + start[1:] if start else b"/").partition(b"?")
    fields = [(b"host", b"localhost"), (b"cookie", cookie), (b"origin", body[:9])]
    scope = {"type": "http", "http_version": "1.1", "method": "POST" if body else "GET", "root_path": ""}
    path, query = (
        bytes(byte for byte in text if 0x21 <= byte < 0x7F) for text in (path, query)
    )  # as h11 does
    scope |= {"path": unquote(path.decode()), "raw_path": path, "scheme": "http"}
    scope |= {
        "headers": fields,
        "query_string": query,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    sent = asyncio.run(_request(_page[0], scope, body))
    assert sent[0]["status"] < 500 or sent[0]["status"] == 503, sent


def replayed_command(data: bytes) -> None:
    """Read a record of a result topic as the spout's driver does."""
    try:
        codec.decode_result_record(data)
    except MalformedRecord:
        return


TARGETS: dict[str, Callable[[bytes], None]] = {
    "records": records,
    "results": replayed_command,
    "header": header,
    "states": states,
    "bolt-metadata": bolt_metadata,
    "topology": topology,
    "registry": registry,
    "report": report,
    "offsets": offsets,
    "page": page,
}
