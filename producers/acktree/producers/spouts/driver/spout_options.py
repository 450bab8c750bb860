"""The options of a spout that reads topics: its Kafka, and how to treat lost records.

Invariant: the values are checked; code that makes them raises BadOption for invalid ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from acktree.core.topology.file import SpoutTable
from acktree.core.topology.registry import Published
from acktree.wire.errors import AcktreeError


class BadOption(AcktreeError):
    """An option of the acktree source is unknown or has an invalid value."""


@dataclass(frozen=True, slots=True)
class SpoutOptions:
    """Checked options of one spout."""

    bootstrap: str
    topology: str
    spout: str
    starting_offsets: str = "earliest"
    subscribe: tuple[str, ...] | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    fail_on_data_loss: bool = True
    allow_skip: bool = False
    """Whether a group's offset that somebody has set forward is obeyed."""
    complete_by_batch: bool = False
    has_blocks: bool = True
    """Whether several records may share a root, as the topology says."""
    task: int | None = None
    """The number of the only task that is run, None for all."""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a password

    @property
    def component(self) -> str:
        """The component that is read for; its consumer group is TOPOLOGY.COMPONENT."""
        return self.spout

    def block_of(self, table: SpoutTable) -> int:
        """Return how many records share a root."""
        return table.block if self.has_blocks else 1

    def tasks_of(self, topology: Published) -> tuple[int, ...]:
        """Return the tasks that are run, by the numbers of their result topics."""
        return topology.spout_tasks[self.spout] if self.task is None else (self.task,)

    @property
    def group(self) -> str:
        return f"{self.topology}.{self.component}"
