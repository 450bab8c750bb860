"""`acktree spark`: runs a user's transform from a spout's topics to its tuples, and prepares its start."""

import json
from pathlib import Path

import click

from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    format_option,
    metrics_options,
    parse_settings,
    topology_option,
)
from acktree.console.devbroker.java import find_java
from acktree.core.kafka.clients import make_admin

INSTEAD = {
    "topology": "--topology",
    "spout": "--spout",
    "bolt": "--bolt",
    "availablenow": "--trigger available-now",
    "metricsport": "--metrics-port",
    "metricshost": "--metrics-host",
    "kafka.*": "-b and -X, without the prefix kafka.",
}
"""What has its own option, by the source's option in lower case."""


@click.group()
def spark() -> None:
    """Run a Spark stage of a topology."""


@spark.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@bootstrap_option
@topology_option
@click.option("--spout", metavar="NAME", default="", help="The spout whose topics are read.")
@click.option("--bolt", metavar="NAME", default="", help="The bolt whose topics are read; not with --spout.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for Spark's checkpoint. Default: a temporary one; progress is kept in Kafka.",
)
@click.option(
    "--trigger",
    default="",
    metavar="1s|available-now",
    help="Interval between batches, or available-now: end when all records present are done. "
    "Default: no pause.",
)
@click.option(
    "--option",
    "source",
    metavar="KEY=VALUE",
    multiple=True,
    callback=lambda _context, _parameter, values: _source_options(values),
    help="An option of the source, such as maxOffsetsPerTrigger=10000 or includeHeaders=true; repeatable.",
)
@client_settings_option
@metrics_options
def run(
    function: str,
    bootstrap: str,
    topology: str,
    spout: str,
    bolt: str,
    checkpoint: Path | None,
    trigger: str,
    source: dict[str, str],
    settings: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run MODULE:FUNCTION as the Spark application of a spout or a bolt.

    FUNCTION takes the source's DataFrame and returns one with value and anchors (optionally key, headers and
    fail), or a dict of topic to such DataFrames.
    """
    if bool(spout) == bool(bolt):
        raise click.UsageError("give either --spout NAME or --bolt NAME")
    find_java()
    make_admin(bootstrap, settings)
    from acktree.spark import app

    options = {"kafka.bootstrap.servers": bootstrap, "topology": topology}
    options["spout" if spout else "bolt"] = spout or bolt
    options |= source | {f"kafka.{key}": value for key, value in settings.items()}
    if metrics_port is not None:
        options |= {"metricsPort": str(metrics_port), "metricsHost": metrics_host}
    app.run(function, options, checkpoint, trigger, ready=lambda text: click.echo(text, err=True))


def _source_options(values: tuple[str, ...]) -> dict[str, str]:
    found = parse_settings(values)
    for key in found:
        if instead := INSTEAD.get("kafka.*" if key.lower().startswith("kafka.") else key.lower()):
            raise click.BadParameter(f"{key} is given by {instead}")
    return found


@spark.command(name="warm-up")
@format_option
def warm_up(style: str) -> None:
    """Create an archive of Spark's classes for `spark run` in ~/.cache/acktree; takes half a minute or more.

    Starts then take a quarter less CPU time. Repeat it after an update of Spark or Java.
    """
    find_java()
    from acktree.spark.runtime.class_archive import make_archive
    from acktree.spark.warm_up import warm_up as compile_loops

    for reason in compile_loops():
        click.echo(f"not compiled: {reason}", err=True)
    path = make_archive()
    size = path.stat().st_size
    if style == "json":
        click.echo(json.dumps({"archive": str(path), "bytes": size}))
    else:
        click.echo(f"wrote {path}, {size / 1e6:.0f} MB")
