"""The word count in virtual time: no Kafka, no Spark, no waiting."""

import sqlite3

import pytest


def words(line):
    """What split_lines.py does, for one row."""
    for place, word in enumerate(line.value.decode().split()):
        yield {"value": f"{place} {word}", "key": word}


@pytest.fixture
def tester(topology_tester, tmp_path, monkeypatch):
    monkeypatch.setenv("WORDCOUNT_DATABASE", str(tmp_path / "words.sqlite"))
    return topology_tester(
        "topology.toml", stages={"lines": words}, bolts={"count": "count_words:CountWords"}
    )


def counted(tmp_path):
    with sqlite3.connect(tmp_path / "words.sqlite") as database:
        return dict(database.execute("select word, count(*) from words group by word"))


def test_words_are_counted(tester, tmp_path):
    tester.send("lines", "to be or not to be")
    tester.run_until_done()
    assert counted(tmp_path) == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_a_replay_counts_once(tester, tmp_path):
    line = tester.send("lines", "to be")
    tester.lose("ack")
    tester.run_until_done()
    assert tester.replays("lines") == {line: 1}
    assert tester.acked("lines") == [line]
    assert counted(tmp_path) == {"to": 1, "be": 1}
    assert tester.now_s > 60  # virtual seconds: message_timeout_s of topology.toml
