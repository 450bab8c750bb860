"""`acktree demo`: runs the whole path on this machine, then compares the counts with the text sent."""

import json

import click
from rich.console import Console

from acktree.console.commands.options import format_option
from acktree.console.devbroker.owner import leaving_on_signals

LINES = {"spark": 1_000_000, "python": 200_000}
"""How many lines are sent, by engine: either takes a minute or two on two cores, start included."""


@click.command()
@click.option(
    "--lines",
    metavar="N|all",
    help="Number of lines of the Python standard library to send, repeated as needed; all: each line once. "
    f"Default: {LINES['spark']}; with python {LINES['python']}.",
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "python"]),
    default="spark",
    show_default=True,
    help="What runs the stage. With python the stage's process is killed once as well.",
)
@format_option
def demo(lines: str | None, engine: str, style: str) -> None:
    """Run broker, ackers, worker and stage here, send text through, kill an acker, and check the result."""
    lines = lines or str(LINES[engine])
    if lines != "all" and not (lines.isdigit() and int(lines) > 0):
        raise click.BadParameter(
            f"{lines!r} is neither a whole number from 1 nor 'all'", param_hint="--lines"
        )
    from acktree.console.demo.run import WrongCounts, run_demo

    is_json = style == "json"
    with leaving_on_signals():
        result = run_demo(Console(stderr=is_json), None if lines == "all" else int(lines), engine)
    if is_json:
        click.echo(json.dumps(result.to_json()))
    if not result.holds:
        raise WrongCounts("the counts do not match; the lines marked ✗ show what differs")
