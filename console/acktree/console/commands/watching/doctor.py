"""`acktree doctor`: checks a broker for everything that acktree relies on."""

import json

import click

from acktree.console.columns import printable
from acktree.console.commands.options import bootstrap_option, client_settings_option, format_option
from acktree.console.doctor.answers import Finding, as_table, is_sound, summary
from acktree.console.doctor.broker_checks import BrokerChecks
from acktree.console.doctor.checks import run_checks
from acktree.console.doctor.scratch import Scratch
from acktree.console.doctor.topology_checks import topology_checks
from acktree.console.rights import Role
from acktree.core.kafka.clients import make_admin
from acktree.core.topology.file import parse_topology
from acktree.core.topology.registry import Published, read_history

EXIT_UNSOUND = 1
_SMALLEST = parse_topology('name = "doctor"\n[spouts.s]\nemits = ["doctor.out"]\n')
"""What a topology's topics get where its file says nothing."""


@click.command()
@click.option("--topology", "name", metavar="NAME", help="Also check the topics and rights of this topology.")
@click.option(
    "--principal",
    "principals",
    metavar="ROLE=TYPE:NAME",
    multiple=True,
    help="Who runs in a role, such as acker=User:acker; repeatable. With --topology.",
)
@format_option
@bootstrap_option
@client_settings_option
@click.pass_context
def doctor(
    context: click.Context,
    name: str | None,
    principals: tuple[str, ...],
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Check that a broker does what acktree relies on, and print what works.

    Creates topics named acktree-doctor-… and removes them. Exit code 1: something does not work.
    """
    if principals and name is None:
        raise click.UsageError("--principal needs --topology")
    roles = _roles(principals)
    admin = make_admin(bootstrap, settings)
    published = None if name is None else read_history(bootstrap, name, settings).latest
    scratch = Scratch(bootstrap, settings, admin, (published or _SMALLEST).replication_factor)
    findings: list[Finding] = []
    left: dict[str, str] = {}
    try:
        findings += run_checks(BrokerChecks(scratch, published or _SMALLEST).all())
    finally:
        left = scratch.remove()
        for topic, reason in left.items():
            text = f"warning: topic {topic} could not be removed ({reason}); remove it with kafka-topics"
            click.echo(printable(text), err=True)
    if published is not None:
        findings += run_checks(topology_checks(scratch, published, roles))
    click.echo(_as_json(findings, published, left) if style == "json" else as_table(findings))
    click.echo(summary(findings), err=True)
    if not is_sound(findings):
        context.exit(EXIT_UNSOUND)


def _as_json(findings: list[Finding], published: Published | None, left: dict[str, str]) -> str:
    document = {
        "topology": published.name if published else None,
        "sound": is_sound(findings),
        "checks": [finding.document() for finding in findings],
        "not_removed": left,
    }
    return json.dumps(document)


def _roles(texts: tuple[str, ...]) -> dict[Role, list[str]]:
    """Return who has each role, of texts ROLE=TYPE:NAME. Raises click.BadParameter."""
    found: dict[Role, list[str]] = {}
    for text in texts:
        role, _, principal = text.partition("=")
        if role not in list(Role) or ":" not in principal:
            raise click.BadParameter(
                f"{text!r} is not ROLE=TYPE:NAME, such as acker=User:acker; roles: {', '.join(Role)}",
                param_hint="--principal",
            )
        found.setdefault(Role(role), []).append(principal)
    return found
