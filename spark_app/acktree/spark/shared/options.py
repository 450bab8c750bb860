"""Options of the source and the stage, named as Spark's Kafka source names them.

Invariant: an unknown option is an error that lists the known ones; nothing is ignored. An option given at the
start takes precedence over the topology's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from acktree.core.topology.file import Topology
from acktree.producers.spouts.driver.spout_options import BadOption, SpoutOptions

KNOWN = (
    "topology",
    "spout",
    "bolt",
    "subscribe",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "includeHeaders",
    "failOnDataLoss",
    "allowSkip",
    "complete",
    "transactions",
    "availableNow",
    "plan",
    "topic",
    "metricsPort",
    "metricsHost",
    "kafka.*",
)

NARROW = "narrow"
"""The shape of a plan that ``plan`` declares: each task writes all that comes of what it has read itself."""


_OF_TOPOLOGY = {
    "starting_offsets": "starting_offsets",
    "max_offsets_per_trigger": "max_offsets",
    "include_headers": "include_headers",
    "fail_on_data_loss": "fail_on_data_loss",
    "transactions": "transactions",
    "complete": "complete_by_batch",
}
"""Where an option of the topology file belongs."""


@dataclass(frozen=True, slots=True)
class SourceOptions(SpoutOptions):
    """Checked options of one ``format("acktree")`` source; ``spout`` is "" in the role of a bolt."""

    bolt: str = ""
    max_offsets: int | None = None
    include_headers: bool = False
    transactions: bool = True
    available_now: bool = False
    plan: str = ""
    topic: str = ""
    given: frozenset[str] = field(default=frozenset(), repr=False)
    """What the start has given, in small letters: the topology does not change it."""

    @property
    def component(self) -> str:
        """The spout or bolt that is read for; its consumer group is TOPOLOGY.COMPONENT."""
        return self.spout or self.bolt

    @property
    def declared_by(self) -> str:
        """The group whose source says that its plan is narrow, "" if this one does not."""
        return self.group if self.plan else ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Return the checked options.

        Raises:
            BadOption: one is missing, unknown or has an invalid value.
        """
        given = {key.lower(): value for key, value in options.items()}
        kafka = {key[6:]: given.pop(key) for key in list(given) if key.startswith("kafka.")}
        given.pop("path", None)
        names = {name.lower(): name for name in KNOWN}
        if unknown := [key for key in given if key not in names]:
            raise BadOption(f"unknown option {unknown[0]!r}; known options: {', '.join(KNOWN)}")
        if not given.get("topology"):
            raise BadOption("option 'topology' is missing")
        if bool(given.get("spout")) == bool(given.get("bolt")):
            raise BadOption("set either option 'spout' or option 'bolt', whichever the source reads for")
        if not (bootstrap := kafka.pop("bootstrap.servers", "")):
            raise BadOption("option 'kafka.bootstrap.servers' is missing")
        starting = given.get("startingoffsets", "earliest").lower()
        if starting not in ("earliest", "latest"):
            raise BadOption(f"startingOffsets={starting!r}: must be earliest or latest")
        subscribe = given.get("subscribe")
        return cls(
            bootstrap=bootstrap,
            topology=given["topology"],
            spout=given.get("spout", ""),
            bolt=given.get("bolt", ""),
            starting_offsets=starting,
            max_offsets=_whole_number("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger")),
            include_headers=_truth("includeHeaders", given.get("includeheaders", "false")),
            transactions=_truth("transactions", given.get("transactions", "true")),
            subscribe=tuple(topic.strip() for topic in subscribe.split(",")) if subscribe else None,
            metrics_port=_port("metricsPort", given.get("metricsport")),
            metrics_host=given.get("metricshost", "127.0.0.1"),
            fail_on_data_loss=_truth("failOnDataLoss", given.get("failondataloss", "true")),
            allow_skip=_truth("allowSkip", given.get("allowskip", "false")),
            complete_by_batch=_by_batch(given.get("complete", "tree"), given.get("bolt", "")),
            available_now=_truth("availableNow", given.get("availablenow", "false")),
            plan=_plan(given),
            topic=given.get("topic", ""),
            kafka=kafka,
            given=frozenset(given),
        )

    def within(self, topology: Topology) -> "SourceOptions":
        """Return these options, with those of a topology's file for what the start has not given.

        Raises:
            BadOption: the two do not go together.
        """
        tables = topology.spouts if self.spout else topology.bolts
        if (table := tables.get(self.component)) is None:
            return self  # who connects says so
        found: dict[str, Any] = {
            _OF_TOPOLOGY[key]: value
            for key, value in table.spark.model_dump().items()
            if key.replace("_", "") not in self.given
        }
        if "complete_by_batch" in found:
            found["complete_by_batch"] = found["complete_by_batch"] == "batch"
        made = replace(self, **found)
        if made.plan and (made.complete_by_batch or not made.transactions):
            raise BadOption(
                f"plan={made.plan} needs transactions=true and complete=tree, but table spark of "
                f"{made.component} in the topology file says otherwise: give both as options of the query"
            )
        return made

    def with_headers(self, wanted: bool) -> "SourceOptions":
        """Return these options with the column ``headers``, or without, whatever the topology says."""
        return replace(self, include_headers=wanted, given=self.given | {"includeheaders"})


def _by_batch(complete: str, bolt: str) -> bool:
    if complete not in ("tree", "batch"):
        raise BadOption(f"complete={complete!r}: must be tree or batch")
    if complete == "batch" and bolt:
        raise BadOption("complete=batch is for a spout; a bolt always acks what it reads")
    return complete == "batch"


def _plan(given: Mapping[str, str]) -> str:
    """Return how the rows are said to leave the query: narrow, or "" for a stage that looks for itself."""
    plan = given.get("plan", "")
    if plan not in ("", NARROW):
        raise BadOption(f"plan={plan!r}: must be {NARROW}, or left out")
    if not plan and "topic" in given:
        raise BadOption(f"option 'topic' is for writeStream.format('acktree') with plan={NARROW}")
    if plan and given.get("transactions", "true").lower() != "true":
        raise BadOption(f"plan={NARROW} writes one transaction a task: leave out transactions=false")
    if plan and given.get("complete", "tree") != "tree":
        raise BadOption(f"plan={NARROW} needs complete=tree: leave out complete=batch, or plan={NARROW}")
    return plan


def _whole_number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise BadOption(f"{name}={text!r}: must be a whole number of at least 1")
    return int(text)


def _port(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) > 65_535:
        raise BadOption(f"{name}={text!r}: must be a port number, or 0 for any free port")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadOption(f"{name}={text!r}: must be true or false")
    return text.lower() == "true"
