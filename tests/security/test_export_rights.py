"""The export of traces works with the rights of its role; without one it ends, or says what it lacks."""

import itertools
from threading import Thread

import numpy as np
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from acktree.console.rights import Right, Role, rights
from acktree.console.traces.export import TraceExport
from acktree.console.traces.otlp import OtlpSender
from acktree.core.edges import EdgeSource
from acktree.core.errors import NotAuthorized
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.wire.codec import encode_ack_init, encode_result
from acktree.wire.control_records import ENTRY, AckInit, Cause, Failure, Result
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import emitted_value, root_id
from console.otlp_receiver import OtlpReceiver
from deadlines import stretched
from producers.cluster import until
from security.secure_broker import SecureBroker

WAIT_S = stretched(30)
NAME = "exported"
TOPOLOGY = parse_topology(
    f"""
name = "{NAME}"
ackers = 1
[spouts.lines]
topics = ["{NAME}.lines"]
emits = ["{NAME}.words"]
[bolts.count]
reads = ["{NAME}.words"]
"""
)
DATA = {f"{NAME}.lines", f"{NAME}.words"}
USERS = (f"{NAME}-{number}" for number in itertools.count())
RIGHTS = rights(TOPOLOGY, Role.TRACES, None)


@pytest.fixture(scope="module", autouse=True)
def topology(secure: SecureBroker) -> None:
    """The published topology with one record that has failed."""
    secure.admin.create_topics([NewTopic(f"{NAME}.lines", 1)])[f"{NAME}.lines"].result(WAIT_S)
    apply_topology(secure.plain, TOPOLOGY, {})
    history = read_history(secure.plain, NAME, {})
    version, edge = history.latest.version, EdgeSource().one()
    root = root_id(history.latest.slots[0].slot, 16, 0)
    value = emitted_value(edge, history.readers(version, f"{NAME}.words").hashes)
    init = AckInit(0, version, np.array([(root, value)], ENTRY))
    producer = Producer({"bootstrap.servers": secure.plain, "log_level": 0})
    producer.produce(f"{NAME}.lines", b"line")
    headers = [(HEADER, encode_header(version, [Anchor(version, root, edge)]))]
    producer.produce(f"{NAME}.words", b"word", headers=headers)
    producer.produce(f"{NAME}.ack-init", encode_ack_init(init), partition=0)
    result = Result(0, failed=[Failure(root, Cause.FAILED, "count@here:1", "no")])
    producer.produce(f"{NAME}.spout-0", encode_result(result))
    assert producer.flush(WAIT_S) == 0


EACH = [pytest.param(right, marks=() if right.name in DATA else pytest.mark.slow) for right in RIGHTS]


@pytest.mark.parametrize("missing", [None, *EACH], ids=str)
def test_each_right_of_the_export_is_needed(secure: SecureBroker, missing: Right | None):
    user = next(USERS)
    secure.add_user(user)
    secure.allow(user, [right for right in RIGHTS if right != missing])
    receiver, ended = OtlpReceiver(), list[BaseException]()
    exports: list[TraceExport] = []

    def run() -> None:
        try:
            sender = OtlpSender(NAME, receiver.url)
            exports.append(TraceExport(secure.scram, NAME, secure.properties(user), sender))
            exports[0].run()
        except NotAuthorized as error:
            ended.append(error)

    thread = Thread(target=run)
    thread.start()
    until(lambda: ended or receiver.spans)
    for export in exports:
        export.stop()
    thread.join(WAIT_S)
    receiver.close()
    if missing is None or missing.name in DATA:
        (emission,) = [span for span in receiver.spans if "acktree.root" in span.attributes]
        assert emission.attributes["acktree.complete"] is (missing is None)
        if missing is not None:
            assert missing.name in emission.attributes["acktree.incomplete.reason"]
    else:
        assert "acktree acl plan" in str(ended[0])
    if receiver.spans:  # the next user of the group begins anew
        secure.admin.delete_consumer_groups([f"{NAME}.traces"])[f"{NAME}.traces"].result(WAIT_S)
