"""The topology file: what it may hold, and mistakes named with key, line and allowed values."""

import pytest

from acktree.core.errors import BadTopology
from acktree.core.topology.file import Topology, parse_topology

GOOD = """\
name = "wordcount"
ackers = 4

[spouts.lines]
topics = ["lines"]
emits = ["words"]

[bolts.count]
reads = ["words"]
emits = ["counts"]

[bolts.store]
reads = ["counts", "words"]
"""


def error_of(text: str) -> str:
    with pytest.raises(BadTopology) as caught:
        parse_topology(text, "t.toml")
    return str(caught.value)


def test_a_file_needs_only_names() -> None:
    topology = parse_topology(GOOD)
    assert topology.emitted_topics() == ("words", "counts")
    assert topology.readers_of("words") == ("count", "store")
    assert topology.group_of("count") == "wordcount.count"
    assert topology.result_topic(3) == "wordcount.spout-3"
    assert (topology.message_timeout_s, topology.orphan_timeout_s) == (30, 300)
    assert topology.control_retention_s == 21_600


def test_timeouts_that_are_left_out_follow_the_message_timeout() -> None:
    topology = parse_topology("message_timeout_s = 7200\n" + GOOD)
    assert topology.orphan_timeout_s == 72_000
    assert topology.control_retention_s == 144_000


def test_a_message_timeout_of_0_disables_timeouts_except_that_of_orphans() -> None:
    topology = parse_topology("message_timeout_s = 0\n" + GOOD)
    assert (topology.message_timeout_s, topology.orphan_timeout_s) == (0, 300)
    assert topology.control_retention_s == 21_600


@pytest.mark.parametrize(
    ("change", "by", "line", "says"),
    [
        ("ackers = 4", "acker = 4", 2, "acker: unknown key; must be one of: ackers"),
        ("[bolts.", "[boltz.", 8, "boltz: unknown key; must be one of: ackers"),
        ("ackers = 4", "ackers = -1", 2, "ackers: -1 is invalid"),
        ("ackers = 4", 'ackers = "four"', 2, "ackers: 'four' is invalid"),
        (
            'topics = ["lines"]',
            "topic = ['lines']",
            5,
            "spouts.lines.topic: unknown key; must be one of: block, emits",
        ),
        (
            'reads = ["words"]',
            'reads = ["wrods"]',
            9,
            "nothing emits 'wrods'; must be one of: words, counts",
        ),
        ('reads = ["words"]', "reads = []", 9, "bolts.count.reads"),
        ('reads = ["words"]', "", 8, "bolts.count.reads: field required"),
        ("[bolts.count]", "[bolts.lines]", 8, "is also the name of a spout"),
        ('name = "wordcount"', 'name = "word count"', 1, "name: 'word count' is invalid"),
        ('name = "wordcount"', "", 1, "name: field required"),
        ('emits = ["words"]', 'emits = ["lines", "words"]', 5, "'lines' is also emitted by this topology"),
        ('emits = ["words"]', 'emits = ["words", "wordcount.ack"]', 1, "one of the topology's own topics"),
        ("ackers = 4", "control_retention_s = 60", 2, "below twice the longest timeout; at least 600"),
        ("ackers = 4", "message_timeout_s = -1", 2, "message_timeout_s: -1 is invalid"),
        ("ackers = 4", "orphan_timeout_s = 0", 2, "orphan_timeout_s: 0 is invalid"),
        ('emits = ["words"]', 'emits = ["words"]\nblock = 0', 7, "spouts.lines.block: 0 is invalid"),
        (
            'emits = ["words"]',
            'emits = ["words"]\nblock = 20\nmax_pending = 19',
            7,
            "20 records are more than max_pending = 19 allows in flight",
        ),
        ('topics = ["lines"]', "block = 2", 5, "fed by Python code: each message has its own root"),
        (
            'emits = ["words"]',
            'emits = ["words"]\nspark.include_header = true',
            7,
            "spouts.lines.spark.include_header: unknown key; must be one of: complete, fail_on_data_loss, ",
        ),
        (
            'reads = ["words"]',
            'reads = ["words"]\n[bolts.count.spark]\ncomplete = "batch"',
            11,
            "bolts.count.spark.complete: unknown key; must be one of: fail_on_data_loss, ",
        ),
        (
            'emits = ["words"]',
            'emits = ["words"]\n[spouts.lines.spark]\nstarting_offsets = "newest"',
            8,
            "spouts.lines.spark.starting_offsets: 'newest' is invalid: input should be 'earliest'",
        ),
        ('topics = ["lines"]', "spark.complete = 'batch'", 5, "fed by Python code, not by Spark"),
        (
            'emits = ["words"]',
            'emits = ["words"]\nblock = 2\nspark.complete = "batch"',
            7,
            "needs roots, and with complete",
        ),
        (
            'emits = ["words"]',
            'emits = [{topic = "words", partitions = 0}]',
            6,
            "spouts.lines.emits.0.partitions: 0 is invalid: input should be greater than or equal to 1",
        ),
        (
            'emits = ["words"]',
            'emits = ["words", {topic = "more", partitions = "12"}]',
            6,
            "spouts.lines.emits.1.partitions: '12' is invalid: input should be a valid integer",
        ),
        ('emits = ["words"]', 'emits = [{topic = "words"}]', 6, "emits.0.partitions: field required"),
        (
            'emits = ["words"]',
            'emits = [{topic = "words", partition = 2, partitions = 2}]',
            6,
            "spouts.lines.emits.0.partition: unknown key; must be one of: partitions, topic",
        ),
        ('emits = ["words"]', 'emits = ["words", "a b"]', 6, "spouts.lines.emits.1: 'a b' is invalid"),
        (
            'emits = ["counts"]',
            'emits = [{topic = "counts", partitions = 2}, {topic = "counts", partitions = 3}]',
            10,
            "bolts.count.emits: topic 'counts' cannot have 3 partitions and 2; set one number",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_key_line_and_valid_values(
    change: str, by: str, line: int, says: str
) -> None:
    assert change in GOOD
    sentence = error_of(GOOD.replace(change, by, 1))
    assert f"t.toml, line {line}:" in sentence
    assert says in sentence
    assert "\n" not in sentence


def test_a_spout_tracks_by_record_unless_its_table_says_otherwise() -> None:
    blocks = parse_topology(GOOD.replace('emits = ["words"]', 'emits = ["words"]\nblock = 100'))
    assert blocks.spouts["lines"].block == 100
    assert parse_topology(GOOD).spouts["lines"].block == 1


def test_a_topic_of_tuples_may_state_its_partitions() -> None:
    text = GOOD.replace('emits = ["words"]', 'emits = ["words", {topic = "more", partitions = 12}]')
    text = text.replace('emits = ["counts"]', 'emits = ["more", {topic = "counts", partitions = 3}]')
    topology = parse_topology(text)
    assert (topology.spouts["lines"].emits, topology.bolts["count"].emits) == (
        ("words", "more"),
        ("more", "counts"),
    )
    assert topology.stated_partitions() == {"more": 12, "counts": 3}
    assert Topology.model_validate_json(topology.model_dump_json()) == topology
    assert topology.model_dump()["bolts"]["count"]["emits"][1] == {"topic": "counts", "partitions": 3}


@pytest.mark.parametrize("name", ["acker", "registry", "console", "traces"])
@pytest.mark.parametrize(("kind", "table"), [("spouts", "[spouts.lines]"), ("bolts", "[bolts.store]")])
def test_a_component_cannot_have_the_consumer_group_of_a_part_of_the_topology(
    kind: str, table: str, name: str
) -> None:
    text = GOOD.replace(table, f"[{kind}.{name}]")
    line = 1 + text.splitlines().index(f"[{kind}.{name}]")
    assert error_of(text) == (
        f"t.toml, line {line}: {kind}.{name}: the topology itself uses the name wordcount.{name}; use another"
        " one"
    )


@pytest.mark.parametrize("name", ["topology", "dead-letter"])
def test_a_spout_cannot_have_a_name_whose_rights_cover_transactions_of_others(name: str) -> None:
    assert f"uses the name wordcount.{name}" in error_of(GOOD.replace("[spouts.lines]", f"[spouts.{name}]"))
    parse_topology(GOOD.replace("[bolts.store]", f"[bolts.{name}]"))


@pytest.mark.parametrize("own", ["ack", "ack-init", "topology", "dead-letter", "stats", "spout-0", "state-s"])
def test_no_component_reads_or_emits_a_topic_of_the_topology_itself(own: str) -> None:
    """A bolt may read only what is emitted, so its input topics are among these."""
    topic = f'"wordcount.{own}"'
    for changed in (GOOD.replace('"lines"', topic), GOOD.replace('"counts"', topic)):
        assert f"topic 'wordcount.{own}' is one of the topology's own topics; rename one" in error_of(changed)


def test_two_spouts_cannot_read_one_topic() -> None:
    sentence = error_of(GOOD + '[spouts.more]\ntopics = ["lines"]\n')
    assert "line 15: spouts.more.topics: topic 'lines' is already read by a spout" in sentence


@pytest.mark.parametrize("text", ["name = ", "name = " + "[" * 9_000, "ackers = " + "9" * 9_000])
def test_text_that_is_not_toml_is_an_error(text: str) -> None:
    assert "t.toml is not TOML" in error_of(text)


@pytest.mark.parametrize("key", ["orphan_timeout_s", "message_timeout_s"])
def test_a_number_larger_than_any_float_is_an_error(key: str) -> None:
    assert key in error_of(f'name = "t"\n{key} = {"9" * 400}\n')


@pytest.mark.parametrize("key", ["retry_initial_s", "retry_max_s"])
def test_an_infinite_back_off_is_an_error_because_it_could_not_be_published(key: str) -> None:
    assert key in error_of(GOOD.replace('emits = ["words"]', f'emits = ["words"]\n{key} = inf'))


def test_a_dotted_key_is_also_found() -> None:
    sentence = error_of('name = "a"\nspouts.x.topics = ["t"]\nspouts.x.tasks = 0\n')
    assert "line 3: spouts.x.tasks: 0 is invalid" in sentence
