"""A topology with dead letters, and its page."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from acktree.console.page.app import StatusPage
from acktree.console.page.frame import PageSettings
from console.given_up import GivenUp


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
