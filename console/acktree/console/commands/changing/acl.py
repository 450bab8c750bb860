"""`acktree acl plan`: lists the rights that a role needs, prints them for kafka-acls, or grants them."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from acktree.console.commands.options import client_settings_option
from acktree.console.rights import Right, Role, rights
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_admin
from acktree.core.kafka.errors import clear_errors
from acktree.core.topology.file import Topology, load_topology
from acktree.core.topology.registry import read_history


@click.group()
def acl() -> None:
    """List or grant the rights of each role."""


@acl.command()
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="The role that needs the rights.",
)
@click.option("--principal", metavar="User:NAME", required=True, help="The Kafka principal.")
@click.option("--component", metavar="NAME", help="The bolt or spout. Default: all with this role.")
@click.option("--topology", "name", metavar="NAME", help="The published topology.")
@click.option(
    "--file", type=click.Path(path_type=Path), help="A topology file instead of --topology; needs no broker."
)
@click.option("--host", default="*", show_default=True, help="The only host the principal may connect from.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--execute", is_flag=True, help="Create the ACLs on the cluster. Without it they are only printed."
)
@click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT,…",
    envvar="ACKTREE_BOOTSTRAP_SERVER",
    help="Needed with --topology and --execute.",
)
@client_settings_option
def plan(
    role: str,
    principal: str,
    component: str | None,
    name: str | None,
    file: Path | None,
    host: str,
    style: str,
    execute: bool,
    bootstrap: str | None,
    settings: dict[str, str],
) -> None:
    """Print the minimal rights of a role, one ACL a line, as options of kafka-acls.

    Roles: acker, bolt and spout (in Python), spark (spouts with topics; a bolt with --component), operator
    (topology apply, replay), ui (read only), editor (corrects dead letters), traces (export-traces).
    """
    if bool(name) == bool(file):
        raise click.UsageError("give either --topology NAME or --file FILE")
    if ":" not in principal:
        raise click.BadParameter(
            f"{principal!r} is not TYPE:NAME, such as User:acker", param_hint="--principal"
        )
    if (execute or name) and not bootstrap:
        raise click.UsageError("--topology and --execute need --bootstrap-server")
    needed = rights(_topology(name, file, bootstrap or "", settings), Role(role), component)
    for right in needed:
        if style == "json":
            click.echo(json.dumps({**asdict(right), "principal": principal, "host": host}))
        else:
            click.echo(right.options(principal, host))
    if execute:
        _give(bootstrap or "", settings, [binding(right, principal, host) for right in needed])
        click.echo(f"granted {len(needed)} rights to {principal}", err=True)


def _topology(name: str | None, file: Path | None, bootstrap: str, settings: dict[str, str]) -> Topology:
    if file is not None:
        return load_topology(file)
    make_admin(bootstrap, settings)
    return read_history(bootstrap, name or "", settings).latest


def binding(right: Right, principal: str, host: str) -> AclBinding:
    resource = right.resource.replace("-", "_").upper()
    words = "".join("_" + letter if letter.isupper() else letter for letter in right.operation)
    return AclBinding(
        ResourceType[resource],
        right.name,
        ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL,
        principal,
        host,
        AclOperation[words.strip("_").upper()],
        AclPermissionType.ALLOW,
    )


def _give(bootstrap: str, settings: dict[str, str], bindings: list[AclBinding]) -> None:
    admin = make_admin(bootstrap, settings)
    with clear_errors(bootstrap):
        for future in admin.create_acls(bindings).values():
            future.result(timeout=BROKER_TIMEOUT_S)
