"""A broker as production has it: TLS, SCRAM and certificates, and an authorizer that denies by default.

The plain listener of the same broker is the administrator's door: whoever comes in there is a super user.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from acktree.console.commands.changing.acl import binding
from acktree.console.devbroker.broker import LocalBroker
from acktree.console.rights import Right
from deadlines import stretched

PASSWORD = "canary-5f1d0e7b"
"""Every user's password; it must never be seen in anything that a process writes."""
WAIT_S = stretched(200)
_LOGIN = "org.apache.kafka.common.security"


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until ``holds()``; fail after WAIT_S."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} did not come true in {WAIT_S} s"
        time.sleep(0.02)


class SecureBroker:
    """Addresses, certificates and users of one secured broker."""

    def __init__(self, start: Callable[..., LocalBroker], folder: Path) -> None:
        self.folder = folder
        self.ca, self.stranger = trustme.CA(), trustme.CA()
        self.ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        self.stranger.cert_pem.write_to_path(str(folder / "stranger-ca.pem"))
        self._keys("broker", self.ca.issue_cert("127.0.0.1"))
        self.kafka = start(
            settings=self._settings(),
            listeners={"SCRAM": "SASL_SSL", "MUTUAL": "SSL", "OPEN": "SASL_PLAINTEXT"},
        )
        self.plain = self.kafka.bootstrap
        self.scram, self.mutual = self.kafka.address("SCRAM"), self.kafka.address("MUTUAL")
        self.open = self.kafka.address("OPEN")
        self.admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 0})

    def _settings(self) -> dict[str, str]:
        plain = f'{_LOGIN}.plain.PlainLoginModule required user_plain="{PASSWORD}";'
        scram = f"{_LOGIN}.scram.ScramLoginModule required;"
        bearer = (
            f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="kafka";'
        )
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.open.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.scram.plain.sasl.jaas.config": plain,
            "listener.name.open.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.open.plain.sasl.jaas.config": plain,
            "listener.name.open.oauthbearer.sasl.jaas.config": bearer,
            "listener.name.open.oauthbearer.connections.max.reauth.ms": "60000",  # or a token's end
        }

    def _keys(self, name: str, issued: trustme.LeafCert) -> Path:
        """Write a certificate and its key, the key as PKCS 8: Kafka reads no other form."""
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path = self.folder / f"{name}.pem"
        path.write_bytes(pem + b"".join(part.bytes() for part in issued.cert_chain_pems))
        return path

    def add_user(self, name: str, password: str = PASSWORD) -> None:
        """Give a SCRAM user a password, and wait until the broker knows it."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(name, info, password.encode())
        self.admin.alter_user_scram_credentials([change])[name].result(WAIT_S)
        until(lambda: name in self.admin.describe_user_scram_credentials().result(WAIT_S), f"user {name}")

    def allow(self, user: str, allowed: Iterable[Right]) -> None:
        """Give rights, and wait until the broker's authorizer knows them."""
        bindings = [binding(right, f"User:{user}", "*") for right in allowed]
        if not bindings:
            return
        for future in self.admin.create_acls(bindings).values():
            future.result(WAIT_S)
        until(lambda: len(self.rights_of(user)) >= len(bindings), f"rights of {user}")

    def rights_of(self, user: str) -> list[AclBinding]:
        """Return what the broker's authorizer allows a user."""
        any_resource = ResourceType.ANY, None, ResourcePatternType.ANY
        mine = AclBindingFilter(*any_resource, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY)
        return list(self.admin.describe_acls(mine).result(WAIT_S))

    def properties(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        """Return what a SCRAM user's clients need."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }

    def certificate(self, name: str, ca: trustme.CA | None = None) -> dict[str, str]:
        """Return what a client with a certificate of its own needs; ``ca`` issues it, ours by default."""
        path = self._keys(name, (ca or self.ca).issue_cert(f"{name}.example", common_name=name))
        return {
            "security.protocol": "SSL",
            "ssl.certificate.location": str(path),
            "ssl.key.location": str(path),
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }
