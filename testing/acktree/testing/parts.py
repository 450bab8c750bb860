"""Checks the spouts, bolts and stages that a test gives to a topology, and makes the processes that run them.

Invariant: every name belongs to the topology, and every part of the topology is given or left out on purpose.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from acktree.acker.service import Acker
from acktree.core.topology.file import Topology
from acktree.core.user_code import load_callable
from acktree.producers.bolt import AnyBolt
from acktree.producers.functions import bolt_class_of
from acktree.producers.loading import make_handler
from acktree.producers.spout import Spout
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.stages.stage_worker import StageWorker
from acktree.producers.worker.executing.bolt_kinds import BOLTS
from acktree.producers.worker.loop import Worker
from acktree.testing.messages import Messages
from acktree.testing.services import Runner, Service
from acktree.testing.virtual.errors import MissingPart
from acktree.testing.virtual.kernel import Kernel

BOOTSTRAP = "simulated"
Make = Callable[[Service], Runner]


@dataclass
class Parts:
    """The parts of a topology; ``TopologyTester`` documents its arguments."""

    kernel: Kernel
    topology: Topology
    spouts: Mapping[str, Any]
    bolts: Mapping[str, Any]
    stages: Mapping[str, Any]
    workers: Mapping[str, int]
    ackers: int
    options: Mapping[str, Mapping[str, str]]
    user: Mapping[str, str]
    handlers: dict[str, Any] = field(default_factory=dict)
    """The user's bolt or spout of each process."""
    messages: dict[str, Messages] = field(default_factory=dict)
    """What became of the messages of each Python spout's task."""
    checkpoints: dict[str, Any] = field(default_factory=dict)
    """The checkpoint of each stage."""

    def __post_init__(self) -> None:
        topology = self.topology
        of_python = [name for name, table in topology.spouts.items() if not table.topics]
        of_kafka = [name for name, table in topology.spouts.items() if table.topics]
        _refuse_unknown("spouts", self.spouts, topology.spouts)
        _refuse_unknown("bolts", self.bolts, topology.bolts)
        _refuse_unknown("stages", self.stages, [*of_kafka, *topology.bolts])
        _refuse_unknown("workers", self.workers, topology.bolts)
        _refuse_unknown("options", self.options, self.stages)
        for name in of_python:
            _refuse_missing(name in self.spouts, f"spout {name!r}: give it by spouts={{{name!r}: …}}")
        for name in of_kafka:
            text = (
                f"the stage of spout {name!r}, which reads Kafka topics: give what Spark makes of a row by "
                f"stages={{{name!r}: function}}, or a function or bolt in Python by spouts={{{name!r}: …}}"
            )
            _refuse_missing(name in self.stages or name in self.spouts, text)
        for name in topology.bolts:
            text = f"bolt {name!r}: give it by bolts={{{name!r}: …}}, or None to leave it out"
            _refuse_missing(name in self.bolts or name in self.stages, text)
        for name in of_python:
            _refuse_shared(name, self.spouts.get(name), topology.spouts[name].tasks, "tasks")
        for name in topology.bolts:
            _refuse_shared(name, self.bolts.get(name), self.workers.get(name, 1), "workers")

    def services(self) -> Iterator[Service]:
        """Yield a service for every process."""
        topology = self.topology
        for number in range(self.ackers if topology.ackers else 0):
            yield _service("acker", number, "acker", self._acker)
        for name, given in self.bolts.items():
            for number in range(self.workers.get(name, 1) if given is not None else 0):
                yield _service(name, number, "bolt", partial(self._worker, name, given))
        for name, stage in self.stages.items():
            yield _service(name, 0, "spark", partial(self._application, name, stage))
        for name, given in self.spouts.items():
            if topology.spouts[name].topics:
                yield _service(name, 0, "stage", partial(self._stage, name, given))
                continue
            for task in range(topology.spouts[name].tasks):
                yield _service(name, task, "spout", partial(self._spout, name, given, task))

    def _acker(self, service: Service) -> Runner:
        return Acker(BOOTSTRAP, self.topology.name, user=self.user, ready=service.set_ready)

    def _worker(self, name: str, given: Any, service: Service) -> Runner:
        bolt = self.handlers[service.name] = _made(given, BOLTS, "execute")
        ready = service.set_ready
        return Worker(BOOTSTRAP, self.topology.name, bolt, name=name, user=self.user, ready=ready)

    def _stage(self, name: str, given: Any, service: Service) -> Runner:
        def make_bolt() -> AnyBolt:
            bolt: AnyBolt = _made(given, BOLTS, "execute")
            self.handlers[service.name] = bolt
            return bolt

        stage = make_bolt() if isinstance(given, AnyBolt) else make_bolt
        ready = service.set_ready
        return StageWorker(BOOTSTRAP, self.topology.name, stage, name=name, user=self.user, ready=ready)

    def _spout(self, name: str, given: Any, task: int, service: Service) -> Runner:
        spout = self.handlers[service.name] = _made(given, (Spout,), "next_tuple")
        self.messages.setdefault(service.name, Messages()).watch(spout)
        place = BOOTSTRAP, self.topology.name
        return SpoutWorker(*place, spout, task=task, name=name, user=self.user, ready=service.set_ready)

    def _application(self, name: str, stage: Any, service: Service) -> Runner:
        from acktree.testing.spark.spark_stub import Checkpoint, SparkApplication

        role = {"spout": name} if name in self.topology.spouts else {"bolt": name}
        kafka = {f"kafka.{key}": value for key, value in self.user.items()}
        place = {"kafka.bootstrap.servers": BOOTSTRAP, "topology": self.topology.name}
        options = {**place, **role, **kafka, **self.options.get(name, {})}
        assert service.process is not None
        checkpoint = self.checkpoints.setdefault(name, Checkpoint())
        function = (
            load_callable(stage, "MODULE:NAME", "jobs:words", MissingPart)
            if isinstance(stage, str)
            else stage
        )
        return SparkApplication(
            self.kernel, service.process, options, function, checkpoint, ready=service.set_ready
        )


def _service(component: str, number: int, kind: str, make: Make) -> Service:
    return Service(f"{component}-{number}", component, kind, make)


def _made(given: Any, kinds: tuple[type[Any], ...], does: str) -> Any:
    """Return a user's bolt or spout, newly made unless an instance was given."""
    if isinstance(given, str):
        return make_handler(given, kinds, does)
    given = bolt_class_of(given) or given
    if inspect.isclass(given) or not isinstance(given, kinds):
        if not callable(given):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise MissingPart(
                f"{given!r} is not a {wanted}: give an instance, a class or function that makes one, "
                "or MODULE:NAME"
            )
        return given()
    return given


def _refuse_unknown(what: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise MissingPart(f"{what}: there is no {name!r} to give here; must be one of: {_list(known)}")


def _refuse_missing(is_given: bool, text: str) -> None:
    if not is_given:
        raise MissingPart(f"the test does not give {text}")


def _refuse_shared(name: str, given: Any, count: int, what: str) -> None:
    if count > 1 and isinstance(given, AnyBolt | Spout):
        raise MissingPart(
            f"{name!r} has {count} {what}, and an instance serves one of them: give its class, or a function"
        )


def _list(names: Collection[str]) -> str:
    return ", ".join(names) or "none"
