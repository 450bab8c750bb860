"""`oauth_cb=MODULE:FUNCTION`: which functions are taken, and what is wrong with the others."""

from typing import Any

import pytest

from acktree.console.properties import client_properties, variable_of
from acktree.core.errors import RefusedSetting
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.kafka.oauth import TokenFunction, token_function
from acktree.spark.tasks.producers import TaskProducer

BEARER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"oauth_cb": "nowhere:token"}, "no module 'nowhere'"),
        ({"oauth_cb": "security.tokens:nothing"}, "has no 'nothing'"),
        ({"oauth_cb": "security.tokens:NOT_A_FUNCTION"}, "neither a class nor a function"),
        ({"oauth_cb": "security.tokens:Maker"}, "is a class; it must be a function"),
        ({"oauth_cb": "token"}, "is not MODULE:FUNCTION for oauth_cb, for example auth:token"),
        (
            {"oauth_cb": "security.tokens:token", "sasl.mechanism": "PLAIN"},
            "sasl.mechanism=OAUTHBEARER; it is PLAIN",
        ),
        (
            {"oauth_cb": "security.tokens:token", "security.protocol": "SSL"},
            "security.protocol=SASL_SSL .*it is SSL",
        ),
        ({"oauth_cb": "security.tokens:token", "sasl.oauthbearer.method": "oidc"}, "are mutually exclusive"),
    ],
)
def test_a_function_that_cannot_make_tokens_is_refused_with_the_reason(settings: dict[str, str], says: str):
    whole = {**BEARER, **settings}
    for make in (
        lambda: token_function(whole),
        lambda: make_consumer({"bootstrap.servers": "127.0.0.1:9", "group.id": "g", **whole}),
        lambda: make_producer({"bootstrap.servers": "127.0.0.1:9", **whole}),
        lambda: make_admin("127.0.0.1:9", whole),
        lambda: TaskProducer("127.0.0.1:9", whole),
    ):
        with pytest.raises(RefusedSetting, match=says):
            make()


def test_without_the_property_nothing_is_imported():
    assert token_function(BEARER) is None


def test_the_property_may_come_from_the_environment_under_its_own_name():
    assert variable_of("oauth_cb") == "ACKTREE_KAFKA_OAUTH_CB"
    environment = {"ACKTREE_KAFKA_OAUTH_CB": "auth:token", "ACKTREE_KAFKA_SASL_MECHANISM": "OAUTHBEARER"}
    found = client_properties({}, environment, None)
    assert found == {"oauth_cb": "auth:token", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    "returned", [None, "token", ("token",), ("canary", "soon"), (b"canary", 1.0), ("canary", 1.0, "a", {}, 5)]
)
def test_a_malformed_token_is_an_error_that_does_not_show_it(returned: Any, caplog: pytest.LogCaptureFixture):
    function = TokenFunction("auth:token", lambda _config: returned)
    with pytest.raises(TypeError, match="it must return"):
        function(None)
    assert "no token from oauth_cb=auth:token: TypeError: it must return" in caplog.text
    assert "canary" not in caplog.text + str(function.failure)
