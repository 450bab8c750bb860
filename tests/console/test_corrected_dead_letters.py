"""Corrected values: typed in an editor or given, written once, whatever dies or is gone."""

import json
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from acktree.console import dead_letter_edit
from acktree.console.dead_letter_edit import NotCorrectable, carry_out, correct, read_open_dead_letter
from acktree.console.view.cluster import Cluster
from acktree.core import world
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.kafka.settings import ANY_SIZE
from acktree.wire.errors import AcktreeError
from console.dead_letter_topology import (
    CITY,
    LETTERS,
    WAIT_S,
    DeadLetterTopology,
    edit,
    give_up_value,
    source_records,
)
from producers.cluster import until

pytestmark = pytest.mark.simulated


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the editor to a script of Python, which has the text in ``text``."""

    def use(script: str) -> None:
        path = tmp_path / "editor"
        head = f"#!{sys.executable}\nimport pathlib, sys\nfile = pathlib.Path(sys.argv[1])\n"
        path.write_text(f"{head}text = file.read_bytes()\n{script}\n")
        path.chmod(0o700)
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", str(path))

    return use


@pytest.mark.real
def test_a_corrected_value_is_a_new_record_and_its_dead_letter_is_closed(
    topology: DeadLetterTopology,
) -> None:
    before = len(source_records(topology))
    planned = edit(topology, b"right")
    assert planned.exit_code == 0, planned.output
    assert "nothing was changed" in planned.output
    assert len(source_records(topology)) == before
    done = edit(topology, b"right", "--execute", "--format", "json")
    assert done.exit_code == 0, done.output
    new = source_records(topology)[-1]
    place = f"{topology.source}/0/{new.offset()}"
    assert json.loads(done.output)["corrected_as"] == place
    assert (new.value(), new.headers()) == (
        b"right",
        [("acktree-corrects", f"{topology.source}/0/5".encode())],
    )
    listed = json.loads(topology.acktree("dead-letter", "list", "--format", "json").output)["dead_letters"]
    assert {each["offset"]: each["corrected_as"] for each in listed if each["corrected_as"]} == {1: place}
    assert len(listed) == len(LETTERS), "what closes a dead letter is none"
    assert f"corrected as     {place}" in topology.acktree("dead-letter", "show", "1").output
    assert f"corrected as {place}" in topology.acktree("trace", topology.source, "0", "5").output
    assert f"it corrects {topology.source}/0/5" in topology.acktree("trace", *place.rsplit("/", 2)).output


def test_a_dead_letter_is_corrected_once_and_not_replayed_afterwards(topology: DeadLetterTopology) -> None:
    outcomes: list[str] = []
    threads = [
        world.start_thread(partial(correct_directly, topology, value, outcomes), value.decode())
        for value in (b"one", b"two")
    ]
    for thread in threads:
        thread.join(2 * WAIT_S)
    corrections = [each for each in source_records(topology) if each.value() in (b"one", b"two")]
    assert len(corrections) == 1
    assert sorted(outcome == "done" for outcome in outcomes) == [False, True]
    again = edit(topology, b"three", "--execute")
    assert again.exit_code != 0
    assert (again.exit_code, "is closed" in again.output) == (2, True)
    replay = topology.acktree("dead-letter", "replay", "1", "--execute")
    assert (replay.exit_code, "it is closed" in replay.output) == (2, True)
    assert topology.commands() == []


def correct_directly(topology: DeadLetterTopology, value: bytes, outcomes: list[str]) -> None:
    cluster = Cluster(topology.bootstrap, topology.name, {})
    try:
        letter, record = read_open_dead_letter(cluster, 0, 1)
        carry_out(cluster, correct(letter, record, value), {})
        outcomes.append("done")
    except AcktreeError as error:
        outcomes.append(str(error))
    finally:
        cluster.close()


def test_a_process_that_dies_before_the_commit_leaves_the_dead_letter_open(
    topology: DeadLetterTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any, **record: Any) -> None:
        if record["topic"].endswith(".dead-letter"):
            raise Killed
        return send(*_, **record)

    send = dead_letter_edit._send
    cluster = Cluster(topology.bootstrap, topology.name, {})
    letter, record = read_open_dead_letter(cluster, 0, 1)
    before = len(source_records(topology))
    with monkeypatch.context() as patch:
        patch.setattr(dead_letter_edit, "_send", die)
        with pytest.raises(Killed):
            carry_out(cluster, correct(letter, record, b"right"), {})
    assert len(source_records(topology)) == before
    carry_out(cluster, correct(letter, record, b"right"), {})
    cluster.close()
    assert [each.value() for each in source_records(topology)[before:]] == [b"right"]


def test_an_impossible_correction_is_refused(topology: DeadLetterTopology) -> None:
    for value, letter, why in ((b"line", "1", "the value is unchanged"), (b"right", "77", "holds no record")):
        refused = edit(topology, value, "--execute", letter=letter)
        assert (refused.exit_code, why in refused.output) == (2, True), refused.output
    two = topology.acktree("dead-letter", "replay", "1", "2", "--edit")
    assert two.exit_code == 2


@pytest.mark.parametrize(
    ("old", "script", "new"),
    [
        (b'{"n":\r\n1x}\r\n', "file.write_bytes(text.replace(b'1x', b'1'))", b'{"n":\r\n1}\r\n'),
        (b"\xef\xbb\xbfbad", "file.write_bytes(text[:-3] + b'good\\n')", b"\xef\xbb\xbfgood"),
        (b"a\r\nb", "file.write_bytes(text + b'c\\r\\n')", b"a\r\nbc"),
        (b"two\n", "file.write_bytes(text + b'\\n')", b"two\n\n"),
        (b"", "file.write_bytes('gr\\u00fc\\u00df'.encode())", "gr\u00fc\u00df".encode()),
        (b"x" * 300_000, "file.write_bytes(text[1:])", b"x" * 299_999),
    ],
    ids=["line ends", "byte order mark", "last line end", "more lines", "empty", "large"],
)
def test_an_editor_changes_what_its_user_changes_and_nothing_else(
    topology: DeadLetterTopology, editor: Callable[[str], None], old: bytes, script: str, new: bytes
) -> None:
    name = give_up_value(topology, old)
    editor(script)
    done = topology.acktree("dead-letter", "replay", name, "--edit", "--execute")
    assert done.exit_code == 0, done.output
    assert source_records(topology)[-1].value() == new


@pytest.mark.parametrize(
    ("old", "script", "sentence"),
    [
        (b"old", "pass", "nothing was saved"),
        (b"old", "sys.exit(1)", "ditor"),
        (b"\xff", "file.write_bytes(b'new')", "not UTF-8 text"),
        (b"old", "file.write_bytes(text + b'\\n')", "the value is unchanged"),
    ],
    ids=["not saved", "failed", "no text", "only a line end"],
)
def test_an_editor_that_saves_nothing_new_corrects_nothing(
    topology: DeadLetterTopology, editor: Callable[[str], None], old: bytes, script: str, sentence: str
) -> None:
    name, before = give_up_value(topology, old), len(source_records(topology))
    editor(script)
    refused = topology.acktree("dead-letter", "replay", name, "--edit", "--execute")
    assert refused.exit_code != 0
    assert sentence in refused.output
    assert len(source_records(topology)) == before


def test_typed_text_is_kept_when_it_cannot_be_written(
    topology: DeadLetterTopology,
    editor: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    admin = make_admin(topology.bootstrap, {})
    limit = ConfigEntry("max.message.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topology.source, incremental_configs=[limit])
    for future in admin.incremental_alter_configs([resource]).values():
        world.wait_for(future, WAIT_S)
    editor("file.write_bytes(b'an hour of work')")
    failed = topology.acktree("dead-letter", "replay", "1", "--edit", "--execute")
    assert failed.exit_code == 2, failed.output
    (path,) = re.findall("the value is kept in (.*)", failed.output)
    assert Path(path).read_bytes() == b"an hour of work"
    assert Path(path).stat().st_mode & 0o077 == 0


def test_a_dead_letter_whose_source_record_is_gone_gives_its_value_back(topology: DeadLetterTopology) -> None:
    refused = topology.acktree("dead-letter", "replay", "0")
    assert "its source record is gone" in refused.output
    done = edit(topology, b"line", "--execute", letter="0")
    assert done.exit_code == 0, done.output
    assert source_records(topology)[-1].value() == b"line"
    assert edit(topology, b"line", "--execute", letter="0").exit_code == 2


def write_without_content(topology: DeadLetterTopology, source: str) -> str:
    """Write the dead letter of a record that its topic does not take; return its name."""
    producer = make_producer({"bootstrap.servers": topology.bootstrap})
    headers = [("acktree-origin", source.encode()), ("acktree-left-out", b"left out")]
    names: list[str] = []
    producer.produce(
        f"{topology.name}.dead-letter",
        headers=headers,
        on_delivery=lambda _, record: names.append(f"0/{record.offset()}"),
    )
    assert producer.flush(WAIT_S) == 0
    return names[0]


def test_a_dead_letter_without_content_is_corrected_from_its_source_record(
    topology: DeadLetterTopology, editor: Callable[[str], None]
) -> None:
    producer = make_producer({"bootstrap.servers": topology.bootstrap, **ANY_SIZE})
    producer.produce(topology.source, b"x" * 1_020_000, b"its key", 0, headers=[("its", b"header")])
    assert producer.flush(WAIT_S) == 0
    large = source_records(topology)[-1]
    name = write_without_content(topology, f"{topology.source}/0/{large.offset()}")
    shown = topology.acktree("dead-letter", "show", name).output
    assert ("note             left out" in shown, "1020000" in shown) == (True, False)
    editor("file.write_bytes(text + b'y' * 10_000)")
    done = topology.acktree("dead-letter", "replay", name, "--edit", "--execute")
    assert "value, 1,030,000 bytes instead of 1,020,000" in done.output
    new = source_records(topology)[-1]
    assert (new.key(), len(new.value())) == (b"its key", 1_030_000)
    assert [header for header, _ in new.headers()] == ["its", "acktree-corrects"]


def test_a_dead_letter_without_content_whose_source_record_is_gone_is_not_corrected(
    topology: DeadLetterTopology,
) -> None:
    name = write_without_content(topology, f"{topology.source}/0/0")
    refused = edit(topology, b"new", letter=name)
    assert (refused.exit_code, "holds no content, and its source record" in refused.output) == (2, True)


@pytest.mark.parametrize("partition", ["1", "9" * 18])
def test_a_dead_letter_of_a_missing_partition_is_not_corrected(
    topology: DeadLetterTopology, partition: str
) -> None:
    name = give_up_value(topology, b"x", f"{topology.source}/{partition}/1")
    refused = edit(topology, b"new", "--execute", letter=name)
    assert (refused.exit_code, "has no partition" in refused.output) == (2, True), refused.output


def test_a_correction_is_refused_if_the_dead_letter_topic_was_recreated_meanwhile(
    topology: DeadLetterTopology,
) -> None:
    cluster = Cluster(topology.bootstrap, topology.name, {})
    letter, record = read_open_dead_letter(cluster, 0, 1)
    topic = f"{topology.name}.dead-letter"
    admin = make_admin(topology.bootstrap, {})
    world.wait_for(admin.delete_topics([topic])[topic], WAIT_S)
    until(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics)
    world.wait_for(admin.create_topics([NewTopic(topic, 1)])[topic], WAIT_S)
    for offset in (8, 9):
        topology.give_up(offset, CITY)
    before = len(source_records(topology))
    with pytest.raises(NotCorrectable, match="recreated"):
        carry_out(cluster, correct(letter, record, b"right"), {})
    cluster.close()
    assert len(source_records(topology)) == before
