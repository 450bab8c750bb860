"""The topology file: spouts, bolts and ackers, and the topics that each reads.

Invariant: every Topology object is valid; unknown keys, dangling topics and settings that contradict each
other are refused with the key, its line and the values allowed. Nothing here connects to a broker.
"""

import tomllib
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from acktree.core.errors import BadTopology
from acktree.core.topology.toml_lines import find_line

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=249)]
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", max_length=249)]
Seconds = Annotated[float, Field(gt=0, le=10_000_000)]
SecondsOrOff = Annotated[float, Field(ge=0, le=10_000_000)]

DEFAULT_TIMEOUT_S = 30.0
DEFAULT_RETENTION_S = 21_600.0
ORPHAN_TIMEOUTS = 10
MAX_BLOCK = 10_000
OWN_GROUPS = frozenset(("acker", "registry", "console", "traces"))
"""Names, behind the topology's, of the groups of its ackers, of its readers and of the export of traces."""
OWN_WRITERS = frozenset(("topology", "dead-letter"))
"""Begin transactional ids, of what publishes and of what corrects dead letters, as a spout's name does."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, serialize_by_alias=True)


class EmittedTopic(_Table):
    """A topic of ``emits`` with the number of partitions that acktree creates it with."""

    topic: TopicName
    partitions: int = Field(ge=1, le=100_000, strict=True)


_NAME, _WITH_PARTITIONS = "[name]", "[with partitions]"
"""The forms of a topic of ``emits``; pydantic puts them into the place of a mistake."""


def _form_of(emitted: Any) -> str:
    return _WITH_PARTITIONS if isinstance(emitted, dict | EmittedTopic) else _NAME


Emitted = Annotated[
    Annotated[TopicName, Tag(_NAME)] | Annotated[EmittedTopic, Tag(_WITH_PARTITIONS)],
    Discriminator(_form_of),
]


def _names(emitted: Iterable[str | EmittedTopic]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(topic if isinstance(topic, str) else topic.topic for topic in emitted))


class SparkTable(_Table):
    """One ``[bolts.NAME.spark]``: options of the Spark source that the start of a query does not give.

    A query uses the options published when it starts. Workers in Python ignore them.
    """

    starting_offsets: Literal["earliest", "latest"] = "earliest"
    max_offsets_per_trigger: int | None = Field(default=None, ge=1)
    include_headers: bool = False
    fail_on_data_loss: bool = True
    transactions: bool = True


class SpoutSparkTable(SparkTable):
    """One ``[spouts.NAME.spark]``."""

    complete: Literal["tree", "batch"] = "tree"


class SpoutTable(_Table):
    """One ``[spouts.NAME]``; without topics it is fed by Python code."""

    topics: tuple[TopicName, ...] = ()
    emitted: tuple[Emitted, ...] = Field(default=(), alias="emits")
    tasks: int = Field(1, ge=1, le=1000)
    block: int = Field(1, ge=1, le=MAX_BLOCK)
    max_pending: int = Field(100_000, ge=1)
    max_attempts: int = Field(10, ge=1, le=1_000_000)
    retry_initial_s: float = Field(1.0, ge=0, allow_inf_nan=False)
    retry_max_s: float = Field(60.0, ge=0, allow_inf_nan=False)
    spark: SpoutSparkTable = SpoutSparkTable()
    max_failure_ratio: float | None = Field(default=None, gt=0, lt=1)
    failure_window_s: float = Field(60.0, ge=1, le=86_400)
    failure_min_results: int = Field(20, ge=1, le=1_000_000_000)
    max_consecutive_failures: int | None = Field(default=None, ge=1, le=1_000_000_000)

    @cached_property
    def emits(self) -> tuple[str, ...]:
        """Return the names of the topics that it writes tuples to."""
        return _names(self.emitted)

    @property
    def breaker(self) -> dict[str, Any]:
        """Return the settings of the breaker that are not the defaults."""
        own = {"max_failure_ratio", "failure_window_s", "failure_min_results", "max_consecutive_failures"}
        return self.model_dump(include=own, exclude_defaults=True)


class BoltTable(_Table):
    """One ``[bolts.NAME]``; its consumer group is TOPOLOGY.NAME.

    ``never_retry`` names exception classes of its workers in Python, each MODULE.NAME; ``execute_timeout_s``
    is how long their ``execute`` may take, 0 for no limit, None for the limit of their class.
    """

    reads: tuple[TopicName, ...] = Field(min_length=1)
    emitted: tuple[Emitted, ...] = Field(default=(), alias="emits")
    exactly_once: bool = False
    spark: SparkTable = SparkTable()
    never_retry: tuple[ClassName, ...] = ()
    execute_timeout_s: SecondsOrOff | None = None

    @cached_property
    def emits(self) -> tuple[str, ...]:
        """Return the names of the topics that it writes tuples to."""
        return _names(self.emitted)


def _stated(table: SpoutTable | BoltTable) -> list[tuple[str, int]]:
    return [(topic.topic, topic.partitions) for topic in table.emitted if isinstance(topic, EmittedTopic)]


class Topology(_Table):
    """The content of one topology file. Times are in seconds; 0 ackers turn tracking off.

    ``message_timeout_s = 0`` turns timeouts off: a root then ends at half of ``control_retention_s``.
    ``replication_factor`` and ``min_insync_replicas`` are for topics that acktree creates; None leaves them
    to the broker.
    """

    name: Name
    ackers: int = Field(1, ge=0, le=10_000)
    message_timeout_s: SecondsOrOff = DEFAULT_TIMEOUT_S
    orphan_timeout_s: Seconds = 300.0
    control_retention_s: Seconds = DEFAULT_RETENTION_S
    replication_factor: int | None = Field(default=None, ge=1, le=32_767)
    min_insync_replicas: int | None = Field(default=None, ge=1, le=32_767)
    spouts: dict[Name, SpoutTable] = Field(default_factory=dict)
    bolts: dict[Name, BoltTable] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _derive_timeouts(cls, data: Any) -> Any:
        """Fill in the timeouts that depend on others: ten message timeouts for orphans by default."""
        if not isinstance(data, dict):
            return data
        message = data.get("message_timeout_s", DEFAULT_TIMEOUT_S)
        if not isinstance(message, int | float) or isinstance(message, bool):
            return data
        filled = {"orphan_timeout_s": ORPHAN_TIMEOUTS * (message or DEFAULT_TIMEOUT_S), **data}
        orphan = filled["orphan_timeout_s"]
        if isinstance(orphan, int | float):
            filled.setdefault("control_retention_s", max(DEFAULT_RETENTION_S, 2 * orphan, 2 * message))
        return filled

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        shortest = 2 * max(self.orphan_timeout_s, self.message_timeout_s)
        if self.control_retention_s < shortest:
            raise _Mistake(
                ("control_retention_s",),
                f"{self.control_retention_s:g} is below twice the longest timeout; at least {shortest:g}",
            )
        if (self.min_insync_replicas or 1) > (self.replication_factor or 32_767):
            raise _Mistake(
                ("min_insync_replicas",),
                f"{self.min_insync_replicas} replicas can never be in sync where replication_factor = "
                f"{self.replication_factor}; at most {self.replication_factor}",
            )
        if both := set(self.spouts) & set(self.bolts):
            raise _Mistake(("bolts", min(both)), "is also the name of a spout; use another one")
        for kind, names, own in (
            ("spouts", self.spouts, OWN_GROUPS | OWN_WRITERS),
            ("bolts", self.bolts, OWN_GROUPS),
        ):
            for name in names:
                if name in own:
                    used = f"the topology itself uses the name {self.group_of(name)}; use another one"
                    raise _Mistake((kind, name), used)
        owner: dict[str, str] = {}
        for spout, table in self.spouts.items():
            if table.block > 1 and not table.topics:
                raise _Mistake(
                    ("spouts", spout, "block"),
                    "a spout without topics is fed by Python code: each message has its own root; omit it",
                )
            if table.spark != SpoutSparkTable() and not table.topics:
                raise _Mistake(
                    ("spouts", spout, "spark"),
                    "a spout without topics is fed by Python code, not by Spark; omit it",
                )
            if table.block > 1 and table.spark.complete == "batch":
                raise _Mistake(
                    ("spouts", spout, "block"),
                    'needs roots, and with complete = "batch" there are none; omit one of them',
                )
            if table.breaker and (self.ackers == 0 or table.spark.complete == "batch"):
                raise _Mistake(
                    ("spouts", spout, min(table.breaker)),
                    'needs results, and with ackers = 0 or complete = "batch" there are none; omit it',
                )
            if table.block > table.max_pending:
                raise _Mistake(
                    ("spouts", spout, "block"),
                    f"{table.block} records are more than max_pending = {table.max_pending} allows in flight",
                )
            for topic in table.topics:
                if owner.setdefault(topic, spout) != spout or table.topics.count(topic) > 1:
                    raise _Mistake(("spouts", spout, "topics"), f"topic {topic!r} is already read by a spout")
        emitted = self.emitted_topics()
        for bolt, reader in self.bolts.items():
            for topic in reader.reads:
                if topic not in emitted:
                    raise _Mistake(
                        ("bolts", bolt, "reads"),
                        f"nothing emits {topic!r}; must be one of: {', '.join(emitted) or 'none'}",
                    )
        if sources := sorted(set(owner) & set(emitted)):
            raise _Mistake(
                ("spouts", owner[sources[0]], "topics"),
                f"{sources[0]!r} is also emitted by this topology: read it with a bolt, or rename one",
            )
        control = {self.ack_init_topic, self.ack_topic, self.registry_topic}
        reserved = {*control, self.dead_letter_topic, self.stats_topic}
        for topic in (*owner, *emitted):
            if topic in reserved or topic.startswith((f"{self.name}.spout-", f"{self.name}.state-")):
                raise _Mistake(("name",), f"topic {topic!r} is one of the topology's own topics; rename one")
        return self

    @model_validator(mode="after")
    def _check_partitions(self) -> Self:
        found: dict[str, int] = {}
        for kind, tables in (("spouts", self.spouts), ("bolts", self.bolts)):
            for name, table in tables.items():
                for topic, partitions in _stated(table):
                    if found.setdefault(topic, partitions) != partitions:
                        raise _Mistake(
                            (kind, name, "emits"),
                            f"topic {topic!r} cannot have {partitions} partitions and {found[topic]}; "
                            "set one number",
                        )
        return self

    @property
    def ack_init_topic(self) -> str:
        return f"{self.name}.ack-init"

    @property
    def ack_topic(self) -> str:
        return f"{self.name}.ack"

    @property
    def registry_topic(self) -> str:
        return registry_topic(self.name)

    @property
    def dead_letter_topic(self) -> str:
        return f"{self.name}.dead-letter"

    @property
    def stats_topic(self) -> str:
        return stats_topic(self.name)

    @property
    def acker_group(self) -> str:
        return f"{self.name}.acker"

    def result_topic(self, spout_task: int) -> str:
        return f"{self.name}.spout-{spout_task}"

    def state_topic(self, spout: str) -> str:
        """Return the topic that holds the state of a spout."""
        return f"{self.name}.state-{spout}"

    def state_topics(self) -> tuple[str, ...]:
        """Return the state topics of all spouts, in file order."""
        return tuple(map(self.state_topic, self.spouts))

    def group_of(self, component: str) -> str:
        """Return the consumer group of a spout or bolt."""
        return f"{self.name}.{component}"

    def members_group(self, spout: str) -> str:
        """Return the group whose members share out the tasks of a spout's stage in Python."""
        return f"{self.group_of(spout)}.members"

    def emitted_topics(self) -> tuple[str, ...]:
        """Return every topic that a spout or bolt of this topology emits, in file order."""
        return tuple(dict.fromkeys(topic for table in self._components() for topic in table.emits))

    def stated_partitions(self) -> dict[str, int]:
        """Return the number of partitions of the emitted topics for which the file states one."""
        return {topic: partitions for table in self._components() for topic, partitions in _stated(table)}

    def _components(self) -> tuple[SpoutTable | BoltTable, ...]:
        return *self.spouts.values(), *self.bolts.values()

    def readers_of(self, topic: str) -> tuple[str, ...]:
        """Return the bolts that read a topic, in file order."""
        return tuple(name for name, bolt in self.bolts.items() if topic in bolt.reads)


def registry_topic(name: str) -> str:
    return f"{name}.topology"


def stats_topic(name: str) -> str:
    return f"{name}.stats"


class _Mistake(ValueError):
    """A contradiction between keys, with the path of the key to change."""

    def __init__(self, place: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.place = place


def load_topology(path: Path) -> Topology:
    """Read and check a topology file.

    Raises:
        BadTopology: the file cannot be read, is not TOML, or has a mistake in a key.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTopology(f"cannot read the topology file {path}: {error}") from error
    return parse_topology(text, str(path))


def parse_topology(text: str, source: str = "topology") -> Topology:
    """Check the text of a topology file; ``source`` names it in errors."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise BadTopology(f"{source} is not TOML: {error}") from error
    try:
        return Topology.model_validate(data)
    except ValidationError as error:
        raise BadTopology(_sentence(error, text, source)) from error


def reached_bolts(versions: Collection[Topology], spout: str) -> set[str]:
    """Return the bolts that records derived from a spout's can reach, under any of some versions."""
    topics = {topic for v in versions if spout in v.spouts for topic in v.spouts[spout].emits}
    bolts = [(name, bolt) for version in versions for name, bolt in version.bolts.items()]
    found = set[str]()
    while new := {name for name, bolt in bolts if not topics.isdisjoint(bolt.reads)} - found:
        found |= new
        topics |= {topic for name, bolt in bolts if name in new for topic in bolt.emits}
    return found


def with_settings(topology: Topology, place: Sequence[str], changes: Iterable[str]) -> Topology:
    """Return a topology with other settings in the table at ``place``; each is KEY=VALUE, as in a file.

    A value that is not TOML is taken as text, so that a shell's quotes are not needed twice.

    >>> small = with_settings(parse_topology('name = "t"\\n[spouts.s]'), ["spouts", "s"], ["max_pending=5"])
    >>> small.spouts["s"].max_pending
    5

    Raises:
        BadTopology: there is no such table or key, or the topology would not be valid.
    """
    data = topology.model_dump()
    table: Any = data
    for part in place:
        if part not in table:
            raise BadTopology(
                f"topology {topology.name} has no {'.'.join(place)}; it has: {', '.join(table) or 'none'}"
            )
        table = table[part]
    for change in changes:
        key, is_setting, text = change.partition("=")
        if not is_setting:
            raise BadTopology(f"{change!r} is not a setting; write KEY=VALUE, such as max_pending=5000")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            value = text
        *tables, name = key.strip().split(".")
        found = table
        for part in tables:
            if not isinstance(found := found.get(part), dict):
                raise BadTopology(f"topology {topology.name}: {'.'.join((*place, key.strip()))}: unknown key")
        found[name] = value
    if data["name"] != topology.name:
        raise BadTopology(f"topology {topology.name}: name cannot be changed; publish it as a new topology")
    try:
        return Topology.model_validate(data)
    except ValidationError as error:
        where, problem = _first_problem(error)
        raise BadTopology(f"topology {topology.name}: {'.'.join(where)}: {problem}") from error


def _sentence(error: ValidationError, text: str, source: str) -> str:
    place, problem = _first_problem(error)
    return f"{source}, line {find_line(text, place)}: {'.'.join(place)}: {problem}"


def _first_problem(error: ValidationError) -> tuple[tuple[str, ...], str]:
    """Return the key of the first mistake, and what is wrong with it."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    place = cause.place if isinstance(cause, _Mistake) else tuple(map(str, first["loc"]))
    place = tuple(part for part in place if part not in ("[key]", _NAME, _WITH_PARTITIONS))
    problem = str(cause) if isinstance(cause, _Mistake) else first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "extra_forbidden":
        problem = f"unknown key; must be one of: {', '.join(_keys_at(place[:-1]))}"
    elif first["type"] not in ("missing", "value_error"):
        problem = f"{first['input']!r} is invalid: {problem}"
    return place, problem


def _keys_at(place: tuple[str, ...]) -> list[str]:
    tables: dict[str, type[_Table]] = {"spouts": SpoutTable, "bolts": BoltTable}
    model = tables.get(place[0], Topology) if place else Topology
    if place[2:] == ("spark",):
        model = SpoutSparkTable if place[0] == "spouts" else SparkTable
    if place[2:3] == ("emits",):
        model = EmittedTopic
    return sorted(field.alias or name for name, field in model.model_fields.items())
