"""`acktree doctor`: each answer of a broker leads to the right conclusion, and nothing stays behind."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from acktree.console.devbroker.broker import LocalBroker
from acktree.console.doctor import broker_checks, conclusions
from acktree.console.doctor.acls import Acl, lacking
from acktree.console.doctor.answers import Answer, Conclusion, Finding, as_table, is_sound
from acktree.console.doctor.broker_checks import BrokerChecks
from acktree.console.doctor.checks import Check, run_checks
from acktree.console.doctor.scratch import PREFIX
from acktree.console.main import main
from acktree.console.rights import Right
from acktree.core import world
from acktree.core.errors import BrokerUnreachable, NotAuthorized
from acktree.core.topology.file import load_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers.collecting.arithmetic.done_above import OWNER_BYTES, WINDOW_OFFSETS, encode_done
from acktree.producers.kafka.record_limits import CLIENT_BYTES
from acktree.spark.tasks.writing.record_transaction import TRANSACTION_TIMEOUT_MS
from deadlines import ANSWER_S, stretched

AT_RISK_ON_ONE_BROKER = {"replication", "internal topics"}


def doctor(address: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "-b", address, *options])


def answers_of(result: Result) -> dict[str, str]:
    """Return the answers of a run with --format json, by check."""
    checks = json.loads(result.stdout)["checks"]
    return {check["check"]: check["answer"] for check in checks}


def own_topics(admin: AdminClient, prefix: str = PREFIX) -> set[str]:
    return {topic for topic in admin.list_topics(timeout=ANSWER_S).topics if topic.startswith(prefix)}


def until_gone(admin: AdminClient, prefix: str) -> None:
    """Wait until a broker lists no such topics: it may do so for a moment after it has deleted them."""
    until_s = time.monotonic() + stretched(60)
    while left := own_topics(admin, prefix):
        assert time.monotonic() < until_s, left
        time.sleep(0.05)


# The conclusions.


@pytest.mark.parametrize(
    ("conclusion", "answer"),
    [
        (conclusions.of_timestamp("LogAppendTime"), "works"),
        (conclusions.of_timestamp("CreateTime"), "does not work"),
        (conclusions.of_timestamp(None), "no answer"),
        (conclusions.of_cleanup("compact"), "works"),
        (conclusions.of_cleanup("delete"), "does not work"),
        (conclusions.of_cleanup(""), "no answer"),
        (conclusions.of_metadata("abc", "abc"), "works"),
        (conclusions.of_metadata("abc", "ab"), "does not work"),
        (conclusions.of_metadata("abc", None), "no answer"),
        (conclusions.of_transaction(conclusions.Seen(True, False, 7), 7), "works"),
        (conclusions.of_transaction(conclusions.Seen(True, True, 7), 7), "does not work"),
        (conclusions.of_transaction(conclusions.Seen(True, False, 6), 7), "does not work"),
        (conclusions.of_transaction(conclusions.Seen(True, False, None), 7), "no answer"),
        (conclusions.of_transaction(conclusions.Seen(False, False, 7), 7), "no answer"),
        (conclusions.of_fencing(wrote=True), "does not work"),
        (conclusions.of_size("1048588"), "works"),
        (conclusions.of_size("500000"), "does not work"),
        (conclusions.of_topic_id("4E1g"), "works"),
        (conclusions.of_topic_id(conclusions.NO_TOPIC_ID), "at risk"),
        (conclusions.of_replication(3, 3, 2), "works"),
        (conclusions.of_replication(3, 2, 2), "at risk"),
        (conclusions.of_replication(3, 3, 1), "at risk"),
        (conclusions.of_replication(3, 3, 3), "at risk"),
        (conclusions.of_replication(3, 3, None), "no answer"),
        (conclusions.of_replication(3, None, 2), "no answer"),
    ],
)
def test_an_answer_of_the_broker_leads_to_its_conclusion(conclusion: Conclusion, answer: str):
    assert conclusion.answer.value == answer
    assert conclusion.found or answer == "works"


@pytest.mark.parametrize(
    ("append_ms", "answer"),
    [
        (1_005, "works"),
        (1_005 + 3_000, "works"),  # a tenth of the timeout and the round trip are allowed
        (1_005 + 3_100, "works slower"),
        (1_000 - 3_100, "works slower"),
        (1_005 + 3_700_000, "does not work"),
    ],
)
def test_a_clock_is_wrong_only_by_what_the_round_trip_cannot_explain(append_ms: int, answer: str):
    assert conclusions.of_skew(1_000, append_ms, 1_010, timeout_s=30).answer.value == answer


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ({"message.timestamp.type": "LogAppendTime", "retention.ms": "7000"}, "works"),
        ({"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}, "works"),
        ({"message.timestamp.type": "LogAppendTime", "retention.ms": "6999"}, "at risk"),
        ({"message.timestamp.type": "CreateTime", "retention.ms": "6999"}, "does not work"),
        ({"retention.ms": "7000"}, "no answer"),
    ],
)
def test_a_topic_is_compared_with_the_settings_that_acktree_gives_it(found: dict[str, str], answer: str):
    wanted = {"message.timestamp.type": "LogAppendTime", "retention.ms": "7000"}
    assert conclusions.of_settings(wanted, found).answer.value == answer


@pytest.mark.parametrize(
    ("narrow", "answer"),
    [({"retention.bytes": "1000"}, "at risk"), ({"max.message.bytes": "9"}, "does not work"), ({}, "works")],
)
def test_a_low_limit_of_one_of_acktrees_topics_is_found(narrow: dict[str, str], answer: str):
    sound = {"retention.bytes": "-1", "cleanup.policy": "delete", "max.message.bytes": "1048588"}
    assert conclusions.of_own_limits(sound | narrow).answer.value == answer


@pytest.mark.parametrize(
    ("found", "partitions", "answer"),
    [
        ({}, 1, "works"),
        ({"max.message.bytes": "9000000", "segment.bytes": "8388608"}, 1, "works"),
        ({"max.message.bytes": "1048588"}, 1, "at risk"),
        ({"segment.bytes": "1048576"}, 1, "at risk"),
        ({"segment.bytes": "1073741824"}, 1, "works slower"),
        ({"segment.bytes": ""}, 1, "no answer"),
        ({}, 3, "works slower"),
    ],
)
def test_the_state_of_a_spout_needs_room_and_one_partition(
    found: dict[str, str], partitions: int, answer: str
):
    sound = {"max.message.bytes": "8388608", "segment.bytes": "16777216"}
    assert conclusions.of_state(sound | found, partitions).answer.value == answer


def test_dead_letters_must_fit_where_their_source_records_did():
    assert conclusions.of_dead_letters(1_000, {"a": 1_000, "b": 10}).answer is Answer.WORKS
    assert conclusions.of_dead_letters(1_000, {"a": 1_001, "b": 10}).answer is Answer.AT_RISK
    assert conclusions.of_dead_letters(1_000, {"a": None}).answer is Answer.NO_ANSWER
    assert conclusions.of_dead_letters(None, {"a": 1_000}).answer is Answer.NO_ANSWER


def test_an_unclean_election_is_a_risk():
    assert conclusions.of_elections({"unclean.leader.election.enable": "true"}).answer is Answer.AT_RISK
    assert conclusions.of_elections({"unclean.leader.election.enable": "false"}).answer is Answer.WORKS


def test_the_doctor_asks_for_as_much_as_the_product_uses():
    left = [offset for offset in range(WINDOW_OFFSETS) if Random(offset).getrandbits(1)]
    longest = len(encode_done(0, WINDOW_OFFSETS, left, b"o" * OWNER_BYTES))
    assert longest <= conclusions.METADATA_CHARS < longest + 10
    assert CLIENT_BYTES == conclusions.RECORD_BYTES
    assert TRANSACTION_TIMEOUT_MS == broker_checks.TRANSACTION_MS


# ACLs.

READ, WRITE_ANY = Right("topic", "t.ack", "Read"), Right("topic", "t.spout-", "Write", is_prefix=True)


@pytest.mark.parametrize(
    ("acls", "lacks"),
    [
        ([("t.ack", False, "Read"), ("t.spout-", True, "Write")], []),
        ([("t.", True, "All")], []),
        ([("*", False, "Read"), ("*", False, "Write")], []),
        ([("t.ack", False, "Write"), ("t.spout-", True, "Write")], ["Read topic t.ack"]),
        ([("t.ack", False, "Read"), ("t.spout-", False, "Write")], ["Write topic t.spout-*"]),
    ],
)
def test_acls_cover_rights_as_kafkas_authorizer_decides(acls: list[tuple[str, bool, str]], lacks: list[str]):
    known = [Acl("User:a", "topic", name, is_prefix, operation) for name, is_prefix, operation in acls]
    assert lacking(known, [READ, WRITE_ANY]) == {"User:a": lacks}
    assert "User:b" in lacking([*known, Acl("User:b", "group", "g", False, "Read")], [READ])


@pytest.mark.parametrize(("who", "name"), [("User:a", "t.spout-7"), ("User:*", "t.spout-")])
def test_a_denial_wins(who: str, name: str):
    known = [Acl("User:a", "topic", "t.", True, "All"), Acl(who, "topic", name, False, "Write", True)]
    assert lacking(known, [WRITE_ANY])["User:a"] == ["Write topic t.spout-*"]


def test_nothing_is_concluded_from_acls_that_do_not_say_who_has_a_role():
    assert conclusions.of_rights({}, []).answer is Answer.NO_ANSWER
    assert conclusions.of_rights({"User:a": ["Read topic t"]}, []).answer is Answer.NO_ANSWER
    assert conclusions.of_rights({"User:a": [], "User:b": ["Read topic t"]}, []).answer is Answer.WORKS
    assert (
        conclusions.of_rights({"User:a": [], "User:b": ["Read topic t"]}, ["User:b"]).answer is Answer.FAILS
    )
    assert conclusions.of_rights({"User:a": []}, ["User:c"]).answer is Answer.FAILS


# Running checks, and the table.


def refusing(error: Exception) -> Callable[[], Conclusion]:
    def ask() -> Conclusion:
        raise error

    return ask


def test_a_check_that_fails_or_never_ends_does_not_stop_the_others():
    code, end = KafkaError, world.event()
    checks = [
        Check("waits", "", lambda: end.wait() and Conclusion(Answer.WORKS)),  # type: ignore[return-value]
        Check("refused", "", refusing(KafkaException(code(code.POLICY_VIOLATION))), advice="ask for it"),
        Check(
            "slower", "", refusing(KafkaException(code(code.UNSUPPORTED_VERSION))), if_refused=Answer.SLOWER
        ),
        Check("forbidden", "", refusing(KafkaException(code(code.TOPIC_AUTHORIZATION_FAILED))), right="Read"),
        Check("away", "", refusing(KafkaException(code(code._TRANSPORT)))),
        Check("no time", "", refusing(TimeoutError())),
        Check("unreachable", "", refusing(BrokerUnreachable("nobody"))),
        Check("not authorized", "", refusing(NotAuthorized("no"))),
        Check("works", "", lambda: Conclusion(Answer.WORKS, "yes")),
    ]
    found = {finding.check: (finding.answer.value, finding.advice) for finding in run_checks(checks, 0.3)}
    end.set()
    assert found == {
        "waits": ("no answer", ""),
        "refused": ("does not work", "ask for it"),
        "slower": ("works slower", ""),
        "forbidden": ("not allowed to ask", "Read"),
        "away": ("no answer", ""),
        "no time": ("no answer", ""),
        "unreachable": ("no answer", ""),
        "not authorized": ("not allowed to ask", ""),
        "works": ("works", ""),
    }


def test_the_table_shows_each_question_its_answer_and_what_to_set():
    findings = [
        Finding("range", "a group", Answer.WORKS, "it did", ""),
        Finding("size", "1 byte", Answer.FAILS, "too large\x1b", "max.message.bytes=2"),
    ]
    assert as_table(findings).splitlines() == [
        "CHECK  ASKED    ANSWER         SET                  FOUND",
        "range  a group  works          -                    it did",
        "size   1 byte   does not work  max.message.bytes=2  too large\\x1b",
    ]
    assert not is_sound(findings)
    assert is_sound(findings[:1])


# Brokers.


def test_all_checks_pass_on_a_test_broker_and_leave_nothing_behind(bootstrap: str):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    result = doctor(bootstrap, "--format", "json")
    assert result.exit_code == 0, result.output
    found = answers_of(result)
    assert len(found) == 14
    assert {check for check, answer in found.items() if answer != "works"} <= AT_RISK_ON_ONE_BROKER
    assert set(found.values()) <= {"works", "at risk"}
    (name,) = [check["found"] for check in json.loads(result.stdout)["checks"] if check["check"] == "topic"]
    assert name.startswith(PREFIX)
    until_gone(admin, name)


@pytest.mark.slow
def test_the_limitations_of_a_restricted_broker_are_found_and_reported(
    own_broker: Callable[..., LocalBroker],
):
    settings = {
        "offset.metadata.max.bytes": "1000",
        "group.coordinator.rebalance.protocols": "classic",
        "transaction.max.timeout.ms": "60000",
        "message.max.bytes": "500000",
        "group.min.session.timeout.ms": "7000",
        "delete.topic.enable": "false",
    }
    broker = own_broker(settings=settings)
    result = doctor(broker.bootstrap, "--format", "json")
    assert result.exit_code == 1, result.output
    answers = answers_of(result)
    wrong = {check: answer for check, answer in answers.items() if answer != "works"}
    assert wrong == {
        "transactions": "does not work",
        "commit metadata": "does not work",
        "range": "does not work",
        "record size": "does not work",
        "new protocol": "works slower",
        "replication": "at risk",
        "internal topics": "at risk",
    }
    advice = {check["check"]: check["set"] for check in json.loads(result.stdout)["checks"]}
    for check, setting in (
        ("transactions", "transaction.max.timeout.ms=300000"),
        ("commit metadata", "offset.metadata.max.bytes=4096"),
        ("range", "group.min.session.timeout.ms"),
        ("record size", "max.message.bytes=1000000"),
    ):
        assert setting in advice[check]
    left = json.loads(result.stdout)["not_removed"]
    assert left.keys() == own_topics(AdminClient({"bootstrap.servers": broker.bootstrap}))
    assert result.stderr.count("could not be removed") == len(left) == 3


def test_its_topics_are_removed_if_it_crashes(bootstrap: str, monkeypatch: pytest.MonkeyPatch):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made: list[str] = []

    def crash(checks: BrokerChecks) -> Conclusion:
        made.append(checks.scratch.topic)
        raise ZeroDivisionError

    monkeypatch.setattr(BrokerChecks, "_compaction", crash)
    result = doctor(bootstrap)
    assert isinstance(result.exception, ZeroDivisionError)
    until_gone(admin, made[0])


@pytest.mark.parametrize(
    "options",
    [
        ["-b", "127.0.0.1:9"],
        ["-b", "127.0.0.1:9", "--principal", "acker=User:a"],
        ["-b", "127.0.0.1:9", "--topology", "t", "--principal", "nobody=User:a"],
        [],
    ],
)
def test_bad_input_and_no_broker_are_exit_code_2(options: list[str]):
    assert CliRunner().invoke(main, ["doctor", *options]).exit_code == 2


def test_the_topics_of_a_topology_are_checked(bootstrap: str, unique: str, tmp_path: Path):
    path = tmp_path / "t.toml"
    path.write_text(
        f'name = "{unique}"\n[spouts.s]\ntopics = ["{unique}.in"]\nemits = ["{unique}.out"]\n'
        f'[bolts.b]\nreads = ["{unique}.out"]\n'
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(f"{unique}.in", 1)])[f"{unique}.in"].result()
    apply_topology(bootstrap, load_topology(path), {})
    result = doctor(bootstrap, "--topology", unique, "--format", "json")
    found = answers_of(result)
    assert result.exit_code == 0, result.output
    assert found["dead letters"] == "works"
    own = ("topology", "dead-letter", "stats", "ack", "ack-init", "out", "spout-0", "state-s")
    assert {f"topic {unique}.{name}" for name in own} | {f"source {unique}.in"} <= found.keys()
    for name, setting, value in (
        ("in", "max.message.bytes", "2000000"),  # the user's choice, as that of tuples
        ("out", "max.message.bytes", "1000"),
        ("ack", "message.timestamp.type", "CreateTime"),
        ("topology", "cleanup.policy", "delete"),
        ("state-s", "cleanup.policy", "delete"),
    ):
        change = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, f"{unique}.{name}", incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result()
    admin.delete_topics([f"{unique}.stats"])[f"{unique}.stats"].result()
    result = doctor(bootstrap, "--topology", unique, "--format", "json")
    assert result.exit_code == 1
    found = answers_of(result)
    wrong = {check for check, answer in found.items() if answer == "does not work"}
    assert wrong == {f"topic {unique}.{name}" for name in ("ack", "topology", "stats", "state-s")}
    assert found["dead letters"] == "at risk"
