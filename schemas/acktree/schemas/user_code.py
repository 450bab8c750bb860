"""Loading of a user's class or function from MODULE:NAME."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from acktree.schemas.errors import AcktreeError


def load_callable(place: str, form: str, example: str, error: type[AcktreeError]) -> Any:
    """Return the class or function at MODULE:NAME, looked for in the working directory, too.

    ``form`` and ``example`` say in an error how it is written; NAME may have dots.

    Raises:
        error: there is no such module or name, a module that it imports is missing, or it cannot be called.
    """
    module, colon, attribute = place.partition(":")
    if not (module and colon and attribute):
        raise error(f"{place!r} is not {form}, for example {example}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise error(f"module {module!r} needs {missing.name!r}, which is not installed") from missing
        raise error(f"no module {module!r} in the current folder or installed") from missing
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise error(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise error(f"{place} is {found!r}, neither a class nor a function")
    return found
