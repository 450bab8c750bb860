"""Write docs/errors.md from the errors' own words: python docs/errors.py"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import acktree
from acktree.schemas.errors import AcktreeError

PAGE = Path(__file__).with_name("errors.md")
HEAD = """# Errors

A command ends with exit code 2 and one sentence; a library raises one of these, all of them `AcktreeError`.
The sentence names the value that is wrong and what to do. This page is written by `python docs/errors.py`.
"""
PARTS = {
    "schemas": "Everywhere",
    "producers": "Workers and spouts",
    "acker": "Ackers",
    "spark": "Spark",
    "console": "Commands",
}


def every_error() -> list[type[AcktreeError]]:
    """Return all errors of the package by name; imports every module of it."""
    for module in pkgutil.walk_packages(acktree.__path__, "acktree."):
        importlib.import_module(module.name)

    def below(error: type[AcktreeError]) -> Iterator[type[AcktreeError]]:
        for subclass in error.__subclasses__():
            yield subclass
            yield from below(subclass)

    ours = {subclass for subclass in below(AcktreeError) if subclass.__module__.startswith("acktree.")}
    return sorted(ours, key=lambda subclass: subclass.__name__)


def page() -> str:
    """Return what the page must be."""
    lines = [HEAD]
    for part, title in PARTS.items():
        lines += [f"## {title}", "", "| error | what it means |", "|---|---|"]
        for error in every_error():
            if error.__module__.split(".")[1] == part:
                words = " ".join((error.__doc__ or "").split()).replace("``", "`").replace("|", "\\|")
                lines.append(f"| `{error.__name__}` | {words} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
