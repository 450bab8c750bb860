"""A topology with dead letters, and its page; receivers of traces."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from acktree.console.page.app import StatusPage
from acktree.console.page.frame import PageSettings
from console.given_up import GivenUp
from console.otlp_receiver import OtlpReceiver


@pytest.fixture
def topology(bootstrap: str, unique: str) -> GivenUp:
    made = GivenUp(bootstrap, unique)
    made.create()
    return made


@pytest.fixture
def page(topology: GivenUp) -> Iterator[TestClient]:
    settings = PageSettings(topology.bootstrap, topology.name, {}, allow_actions=True)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def receiver() -> Iterator[Callable[..., OtlpReceiver]]:
    made: list[OtlpReceiver] = []

    def start(*arguments: Any, **more: Any) -> OtlpReceiver:
        made.append(OtlpReceiver(*arguments, **more))
        return made[-1]

    yield start
    for each in made:
        each.close()
