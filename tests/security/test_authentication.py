"""Which clients a secured broker accepts, and the errors of the others: TLS, SCRAM, PLAIN, OAUTHBEARER."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from acktree.console.main import main
from acktree.console.properties import BadProperties, client_properties, read_properties, variable_of
from acktree.core.errors import NotAuthenticated
from acktree.core.kafka.clients import make_admin
from security.secure_broker import PASSWORD, SecureBroker

BEARER = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": "principal=visitor-with-a-token",
}
"""A user without rights, and of these tests alone: who sees a topology needs more of them to list it."""


@pytest.fixture(scope="module")
def user(secure: SecureBroker) -> str:
    secure.add_user("visitor")
    return "visitor"


def show(address: str, *options: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, ["topology", "show", "-b", address, *options])


def error_of(result: Result) -> str:
    """Return the one sentence that a command ended with."""
    assert result.exit_code == 2, result.output
    assert PASSWORD not in result.output
    (sentence,) = [line for line in result.output.splitlines() if line.startswith("error: ")]
    return sentence


def as_file(folder: Path, properties: dict[str, str]) -> str:
    path = folder / "client.properties"
    path.write_text("# who we are\n\n" + "".join(f"{key} = {value}\n" for key, value in properties.items()))
    return str(path)


def test_scram_over_tls_is_accepted_with_a_properties_file(secure: SecureBroker, user: str, tmp_path: Path):
    result = show(secure.scram, "--command-config", as_file(tmp_path, secure.properties(user)))
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_plain_is_accepted_with_properties_from_the_environment(secure: SecureBroker):
    properties = {**secure.properties("plain"), "sasl.mechanism": "PLAIN"}
    result = show(secure.scram, **{variable_of(key): value for key, value in properties.items()})
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_oauthbearer_is_accepted(secure: SecureBroker):
    result = show(secure.open, *(part for key, value in BEARER.items() for part in ("-X", f"{key}={value}")))
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_a_client_certificate_is_accepted(secure: SecureBroker):
    assert make_admin(secure.mutual, secure.certificate("worker")) is not None


def test_a_wrong_password_is_reported_immediately_and_not_retried(secure: SecureBroker, user: str, tmp_path):
    wrong = as_file(tmp_path, {**secure.properties(user), "sasl.password": "not-the-password"})
    sentence = error_of(show(secure.scram, "--command-config", wrong))
    assert (
        "rejected this client's credentials; check sasl.mechanism, sasl.username and the password" in sentence
    )
    assert "not-the-password" not in sentence


@pytest.mark.slow
def test_a_mechanism_the_broker_lacks_is_named(secure: SecureBroker, user: str):
    with pytest.raises(NotAuthenticated, match=r"supported mechanisms: SCRAM-SHA-512,PLAIN"):
        make_admin(secure.scram, {**secure.properties(user), "sasl.mechanism": "SCRAM-SHA-256"})


def test_a_broker_with_an_untrusted_certificate_is_refused(secure: SecureBroker, user: str):
    trusted = {**secure.properties(user), "ssl.ca.location": str(secure.folder / "stranger-ca.pem")}
    with pytest.raises(NotAuthenticated, match=r"is not trusted; set ssl\.ca\.location"):
        make_admin(secure.scram, trusted)


@pytest.mark.slow
def test_a_broker_whose_certificate_names_another_host_is_refused(secure: SecureBroker, user: str):
    elsewhere = secure.scram.replace("127.0.0.1", "localhost")
    with pytest.raises(NotAuthenticated, match="a host name that it was issued for"):
        make_admin(elsewhere, secure.properties(user))


@pytest.mark.parametrize("who", ["a stranger's", "none"])
@pytest.mark.slow
def test_a_client_with_a_wrong_certificate_is_refused_with_what_to_set(secure: SecureBroker, who: str):
    properties = secure.certificate("intruder", secure.stranger)
    if who == "none":
        properties = {key: value for key, value in properties.items() if "certificate" not in key}
        properties.pop("ssl.key.location")
    with pytest.raises(NotAuthenticated, match=r"refused this client's certificate.*ssl\.certificate\.loc"):
        make_admin(secure.mutual, properties)


@pytest.mark.slow
def test_a_client_without_tls_gets_an_error_that_says_to_set_the_protocol(secure: SecureBroker):
    assert "set security.protocol" in error_of(show(secure.scram))


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(secure: SecureBroker):
    sentence = error_of(show(secure.scram, "-X", f"sasl.password={PASSWORD}"))
    assert "ACKTREE_KAFKA_SASL_PASSWORD" in sentence
    assert "--command-config" in sentence


@pytest.mark.parametrize(
    "key",
    [
        *("sasl.password", "SASL.PASSWORD", "sasl.jaas.config", "ssl.key.pem", "ssl.keystore.password"),
        *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"),
        *("sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase"),
        *("schema.registry.basic.auth.user.info", "schema.registry.bearer.auth.token"),
        *("schema.registry.bearer.auth.client.secret", "schema.registry.ssl.key.password"),
    ],
)
def test_a_secret_by_any_of_its_names_is_refused_on_the_command_line(key: str):
    with pytest.raises(BadProperties, match=f"{key} is refused") as caught:
        client_properties({key: "canary"}, {}, None)
    assert "canary" not in str(caught.value)
    assert client_properties({}, {variable_of(key): "canary"}, None) == {key.lower(): "canary"}


def test_a_password_in_an_address_is_refused_on_the_command_line():
    for url in (
        "https://me:can/ary@registry",
        "http://:canary@registry:8081",
        "http://a,https://me:canary@b",
    ):
        with pytest.raises(BadProperties, match=r"schema\.registry\.url is refused") as caught:
            client_properties({"schema.registry.url": url}, {}, None)
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema.registry.url", "http://registry:8081/path"),
        ("sasl.oauthbearer.token.endpoint.url", "https://idp/token"),
        ("ssl.key.location", "/etc/key.pem"),
        ("sasl.username", "me"),
    ],
)
def test_a_setting_that_is_not_secret_may_be_a_flag(key: str, value: str):
    assert client_properties({key: value}, {}, None) == {key: value}


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path):
    path = tmp_path / "client.properties"
    path.write_text("linger.ms=1\nsasl.username=file\nsasl.password=secret = with = signs\n")
    environment = {"ACKTREE_KAFKA_SASL_USERNAME": "environment", "ACKTREE_KAFKA_LINGER_MS": "2"}
    assert client_properties({"linger.ms": "3"}, environment, path) == {
        "linger.ms": "3",
        "sasl.username": "environment",
        "sasl.password": "secret = with = signs",
    }


@pytest.mark.parametrize("content", [b"linger.ms=1\nsasl.password canary\n", b"\xff\xfe"])
def test_a_broken_properties_file_is_named_and_not_shown(tmp_path: Path, content: bytes):
    path = tmp_path / "client.properties"
    path.write_bytes(content)
    with pytest.raises(BadProperties, match=str(path)) as caught:
        read_properties(path)
    assert "canary" not in str(caught.value)


def test_a_missing_properties_file_is_named(secure: SecureBroker):
    assert "nowhere.properties cannot be read" in error_of(
        show(secure.plain, ACKTREE_COMMAND_CONFIG="nowhere.properties")
    )
