"""`acktree doctor` under guard: it says what it may not ask, and reads ACLs as the authorizer does."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import NewTopic

from acktree.console.main import main
from acktree.console.rights import Role, rights
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from security.secure_broker import SecureBroker

TOPOLOGY = parse_topology("""
name = "examined"
[spouts.lines]
topics = ["examined.lines"]
emits = ["examined.words"]
[bolts.count]
reads = ["examined.words"]
""")


@pytest.fixture(scope="module")
def published(secure: SecureBroker) -> SecureBroker:
    secure.admin.create_topics([NewTopic("examined.lines", 1)])["examined.lines"].result()
    apply_topology(secure.plain, TOPOLOGY, {})
    return secure


def ask(address: str, *options: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return exit code and checks of a run."""
    command = ["doctor", "-b", address, "--topology", "examined", "--format", "json", *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, {check["check"]: check for check in json.loads(result.stdout)["checks"]}


def test_a_question_that_a_principal_may_not_ask_names_the_missing_right(
    published: SecureBroker, tmp_path: Path
):
    published.add_user("onlooker")
    published.allow("onlooker", rights(TOPOLOGY, Role.UI, None))
    path = tmp_path / "client.properties"
    lines = (f"{key}={value}\n" for key, value in published.properties("onlooker").items())
    path.write_text("".join(lines))
    _, found = ask(published.scram, "--command-config", str(path))
    assert {check["answer"] for check in found.values()} == {"not allowed to ask", "no answer"}
    assert found["topic"]["answer"] == "not allowed to ask"
    assert "Create" in found["topic"]["set"]
    assert found["rights of acker"]["answer"] == "not allowed to ask"
    assert "Describe on the cluster" in found["rights of acker"]["set"]
    assert found["topic examined.ack"]["answer"] == "not allowed to ask"


def test_the_rights_of_each_role_are_read_from_the_acls(published: SecureBroker):
    published.add_user("examined-acker")
    needed = rights(TOPOLOGY, Role.ACKER, None)
    published.allow("examined-acker", needed[:-1])
    code, found = ask(published.plain, "--principal", "acker=User:examined-acker")
    lacks = f"{needed[-1].operation} {needed[-1].resource} {needed[-1].name}"
    assert (code, found["rights of acker"]["answer"]) == (1, "does not work")
    assert lacks in found["rights of acker"]["found"]
    assert found["rights of operator"]["answer"] == "no answer"
    published.allow("examined-acker", needed)
    code, found = ask(published.plain, "--principal", "acker=User:examined-acker")
    assert (code, found["rights of acker"]["answer"]) == (0, "works")
    _, found = ask(published.plain)
    assert found["rights of acker"]["answer"] == "works"
