"""The corrected value of a dead letter: from a file, from standard input, or from an editor.

Invariant: what a file holds is taken byte for byte; an editor is given text only, and a line end that it adds
to the last line is taken away.
"""

import os
import sys
import tempfile
from pathlib import Path

import click

STDIN = "-"


def read_value(value_file: str | None, old: bytes | None) -> bytes:
    """Return the corrected value.

    Raises:
        click.ClickException: the value is no text, the editor did not end well, or nothing was saved.
    """
    if value_file == STDIN:
        return sys.stdin.buffer.read()
    if value_file is not None:
        return Path(value_file).read_bytes()
    try:
        text = (old or b"").decode()
    except UnicodeDecodeError as error:
        raise click.ClickException(
            "the value is not UTF-8 text; give the new one with --value-file"
        ) from error
    edited = click.edit(text)
    if edited is None:
        raise click.ClickException("nothing was saved in the editor, so nothing is corrected")
    if edited.endswith("\n") and not text.endswith("\n"):
        edited = edited.removesuffix("\n")
    return edited.encode()


def keep_value(value: bytes) -> str:
    """Write a value to a file that only this user reads, and return its path."""
    descriptor, path = tempfile.mkstemp(prefix="acktree-value-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(value)
    return path
