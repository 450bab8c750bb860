"""A topology with dead letters, and its page; receivers of traces."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from acktree.console.page.serving.frame import PageSettings
from console.dead_letter_topology import DeadLetterTopology
from console.otlp_receiver import OtlpReceiver
from console.page_visitor import Visitor, visit
from simulated_kafka import Simulation, run_in


@pytest.fixture
def topology(kafka: str, unique: str, simulation: Simulation | None) -> DeadLetterTopology:
    made = DeadLetterTopology(kafka, unique)
    run_in(simulation, made.create)
    return made


@pytest.fixture
def page(topology: DeadLetterTopology, simulation: Simulation | None) -> Iterator[Visitor]:
    settings = PageSettings(topology.bootstrap, topology.name, {}, allow_actions=True)
    visits, visitors = ExitStack(), list[Visitor]()
    run_in(simulation, lambda: visitors.append(visits.enter_context(visit(settings))))
    yield visitors[0]
    run_in(simulation, visits.close)


@pytest.fixture
def receiver() -> Iterator[Callable[..., OtlpReceiver]]:
    made: list[OtlpReceiver] = []

    def start(*arguments: Any, **more: Any) -> OtlpReceiver:
        made.append(OtlpReceiver(*arguments, **more))
        return made[-1]

    yield start
    for each in made:
        each.close()
