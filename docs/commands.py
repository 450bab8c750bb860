"""Write docs/commands.md from the commands themselves: python docs/commands.py"""

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from acktree.console.main import main

PAGE = Path(__file__).with_name("commands.md")
HEAD = """# Commands

[Operating](operate.md) describes the commands that operators use most; [Which broker](doctor.md) describes
`acktree doctor`. A command that fails exits with code 2 and one sentence on stderr. This page is generated
by `python docs/commands.py`.
"""
COMMON = 4
"""Options of at least as many commands are listed once, at the beginning."""
TABLE = "| option | default | meaning |\n|---|---|---|\n"


def page() -> str:
    """Return the page: the common options, then a section for each command with usage, help and options."""
    context = click.Context(main, info_name="acktree")
    listed = list(commands(context, main))
    counts = Counter(row for command in listed for row in _rows(command))
    common = [row for row, count in counts.items() if count >= COMMON]
    head = f"{HEAD}\n## Common options\n\n{TABLE}" + "\n".join(common) + "\n"
    return "\n".join([head, *(part for command in listed for part in _section(command, common)), ""])


def commands(context: click.Context, command: click.Command) -> Iterator[click.Context]:
    """Yield the context of each command that is not a group."""
    if not isinstance(command, click.Group):
        yield context
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        if not below.hidden:
            yield from commands(click.Context(below, info_name=name, parent=context), below)


def _section(context: click.Context, common: list[str]) -> Iterator[str]:
    command, rows = context.command, _rows(context)
    yield f"## {context.command_path}\n"
    yield f"```\n{_usage(context, command)}\n```\n"
    if command.help:
        yield _prose(command.help) + "\n"
    if own := [row for row in rows if row not in common]:
        yield TABLE + "\n".join(own) + "\n"
    if shared := [row.split("`")[1].split(" ")[0].rstrip(",") for row in rows if row in common]:
        yield "Common options: " + ", ".join(f"`{flag}`" for flag in shared) + "\n"


def _rows(context: click.Context) -> list[str]:
    return [row for parameter in context.command.params if (row := _row(parameter, context))]


def _usage(context: click.Context, command: click.Command) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def _prose(text: str) -> str:
    """Return a help text as Markdown: click's marks for paragraphs that keep their lines become fences."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"```\n{part[2:]}\n```" if part.startswith("\b\n") else part for part in parts)


def _row(parameter: click.Parameter, context: click.Context) -> str:
    """Return the row of an option; an argument has no help of its own and none."""
    if not isinstance(parameter, click.Option) or parameter.hidden:
        return ""
    record = parameter.get_help_record(context)
    assert record is not None
    names, meaning = record
    default = re.search(r" *\[.*default: ([^;\]]+).*\]$", meaning)
    meaning = re.sub(r" *\[[^]]*\]$", "", meaning) if default else meaning
    cells = (f"`{names}`", f"`{default[1]}`" if default else "", meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
