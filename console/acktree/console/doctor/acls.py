"""Evaluates a cluster's ACLs for a list of rights, as Kafka's own authorizer decides. Pure.

Invariant: a denial wins over any allowance; super users are in no ACL, so nothing is known of them here.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from acktree.console.rights import Right

EVERYBODY = "User:*"
_IMPLIED = {
    "Describe": ("Read", "Write", "Delete", "Alter"),
    "DescribeConfigs": ("AlterConfigs",),
}


class Acl(NamedTuple):
    """One ACL of a cluster; ``operation`` is named as in Right, or All."""

    principal: str
    resource: str
    name: str
    is_prefix: bool
    operation: str
    is_denial: bool = False


def lacking(acls: Iterable[Acl], rights: Sequence[Right]) -> dict[str, list[str]]:
    """Return by principal which of the rights the ACLs do not give it, as "Write topic t.ack".

    >>> lacking([Acl("User:a", "topic", "t.", True, "Read")], [Right("topic", "t.ack", "Describe")])
    {'User:a': []}
    """
    known = list(acls)
    principals = sorted({acl.principal for acl in known if not acl.is_denial})
    return {who: [_named(right) for right in rights if not _has(known, who, right)] for who in principals}


def _named(right: Right) -> str:
    return f"{right.operation} {right.resource} {right.name}{'*' if right.is_prefix else ''}"


def _has(acls: Sequence[Acl], who: str, right: Right) -> bool:
    mine = [acl for acl in acls if acl.principal in (who, EVERYBODY) and acl.resource == right.resource]
    granting = ("All", right.operation, *_IMPLIED.get(right.operation, ()))
    denied = any(
        acl.is_denial and acl.operation in ("All", right.operation) and _touches(acl, right) for acl in mine
    )
    return not denied and any(
        not acl.is_denial and acl.operation in granting and _covers(acl, right) for acl in mine
    )


def _covers(acl: Acl, right: Right) -> bool:
    """Return whether an ACL is about everything that a right is about."""
    if acl.name == "*":
        return True
    if acl.is_prefix:
        return right.name.startswith(acl.name)
    return acl.name == right.name and not right.is_prefix


def _touches(acl: Acl, right: Right) -> bool:
    """Return whether an ACL is about anything that a right is about."""
    return _covers(acl, right) or (right.is_prefix and acl.name.startswith(right.name))
