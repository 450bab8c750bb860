"""`acktree demo`: the whole path on this machine, ending with a checked account."""

import click
from rich.console import Console


@click.command()
@click.option(
    "--lines",
    default="all",
    metavar="N|all",
    help="How many lines of the Python standard library to send. Default: all of them.",
)
def demo(lines: str) -> None:
    """Run a broker, two ackers, a worker and Spark here; send real text through; kill an acker; check all."""
    if lines != "all" and not (lines.isdigit() and int(lines) > 0):
        raise click.BadParameter(
            f"{lines!r} is neither a whole number from 1 nor 'all'", param_hint="--lines"
        )
    from acktree.console.demo.run import run_demo

    run_demo(Console(), None if lines == "all" else int(lines))
