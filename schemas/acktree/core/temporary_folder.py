"""Creates temporary folders that are gone after the next start, even if their process was killed.

Invariant: a folder is removed only by the holder of the lock of its owner's file, and a file under that name
is locked from its first moment on. The kernel releases the lock when the owner and its forks have ended.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PREFIX = "acktree-"
OWNER = ".owner"


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Make the folder ``acktree-PURPOSE-…`` and remove it at the end; first, remove those of the dead."""
    _remove_abandoned_once(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{purpose}-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        new = folder / f"{OWNER}.new"
        with new.open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(folder / OWNER)
            yield folder


@cache
def _remove_abandoned_once(parent: str) -> None:
    remove_abandoned(parent)


def remove_abandoned(parent: str) -> None:
    """Remove what our user's dead processes have left in a folder; others may remove theirs meanwhile."""
    with os.scandir(parent) as entries:
        named = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in named:
        with contextlib.suppress(OSError):  # it is somebody's, or gone, or from before there were owners
            if (
                entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            ):
                _remove_unowned(Path(entry.path))


def _remove_unowned(folder: Path) -> None:
    """Remove a folder whose owner is dead; raise ``OSError`` where its owner lives or it never had one."""
    descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    with open(descriptor, "rb+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
