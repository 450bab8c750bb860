"""Reads the corrected value of a dead letter: from a file, from standard input, or from an editor.

Invariant: the content of a file, or the text saved by an editor, is taken byte for byte, except a line end
that the editor adds to the last line. An editor is given text only.
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
        click.ClickException: the value is not text, the editor failed, or nothing was saved.
    """
    if value_file == STDIN:
        return sys.stdin.buffer.read()
    if value_file is not None:
        return Path(value_file).read_bytes()
    old = old or b""
    try:
        old.decode()
    except UnicodeDecodeError as error:
        raise click.ClickException(
            "the value is not UTF-8 text; give the new one with --value-file"
        ) from error
    edited: bytes | None = click.edit(old)  # of a str it would change line ends
    if edited is None:
        raise click.ClickException("nothing was saved in the editor, so nothing is corrected")
    if old.endswith(b"\n"):
        return edited
    return edited.removesuffix(b"\r\n" if b"\r\n" in old else b"\n")


def keep_value(value: bytes) -> str:
    """Write a value to a file that only this user reads, and return its path."""
    descriptor, path = tempfile.mkstemp(prefix="acktree-value-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(value)
    return path
