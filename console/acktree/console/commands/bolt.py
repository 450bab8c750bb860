"""`acktree bolt run`: a bolt written in Python, as one member of its consumer group."""

import logging
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from acktree.console.commands.options import bootstrap_option, client_settings_option, topology_option
from acktree.producers.bolt import BasicBolt, Bolt
from acktree.producers.errors import BadHandler
from acktree.producers.worker import Worker
from acktree.schemas.clients import make_admin


@click.group()
def bolt() -> None:
    """Run a bolt written in Python."""


@bolt.command()
@click.argument("handler", metavar="MODULE:NAME")
@bootstrap_option
@topology_option
@click.option("--bolt", "name", metavar="NAME", help="Its name in the topology. Default: as its class says.")
@client_settings_option
def run(handler: str, bootstrap: str, topology: str, name: str | None, settings: dict[str, str]) -> None:
    """Run MODULE:NAME, a Bolt or BasicBolt class or a function that returns one.

    The current folder is searched for MODULE. Start the command several times to share the work.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    made = load_bolt(handler)()
    make_admin(bootstrap, settings)
    worker = Worker(
        bootstrap,
        topology,
        made,
        name=name,
        user=settings,
        ready=lambda text: click.echo(text, err=True),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    worker.run()


def load_bolt(handler: str) -> Callable[[], BasicBolt | Bolt]:
    """Return the factory that MODULE:NAME leads to.

    Raises:
        BadHandler: there is no such module or name, or it is no bolt.
    """
    module, colon, attribute = handler.partition(":")
    if not (module and colon and attribute):
        raise BadHandler(f"{handler!r} is not MODULE:NAME, such as count_words:CountWords")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise BadHandler(f"module {module!r} needs {error.name!r}, which is not installed") from error
        raise BadHandler(f"there is no module {module!r} in the current folder or installed") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadHandler(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise BadHandler(f"{handler} is {found!r}, neither a class nor a function that makes a bolt")
    return lambda: _made_by(found, handler)


def _made_by(factory: Callable[[], Any], handler: str) -> BasicBolt | Bolt:
    if isinstance(factory, type) and not issubclass(factory, BasicBolt | Bolt):
        raise BadHandler(f"{handler} is no bolt: subclass acktree.producers.BasicBolt or Bolt")
    try:
        made = factory()
    except TypeError as error:
        raise BadHandler(f"{handler} cannot be called without arguments: {error}") from error
    if not isinstance(made, BasicBolt | Bolt):
        raise BadHandler(f"{handler} returned {made!r}, which is no bolt: subclass BasicBolt or Bolt")
    return made
