"""The folder for files fetched or compiled once: ``$XDG_CACHE_HOME/acktree``, else ``~/.cache/acktree``.

Invariant: everything in it can be made again; a file is renamed into place when it is whole.
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder, made if need be. Raises OSError."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acktree"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
