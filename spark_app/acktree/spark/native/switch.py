"""Decides whether private parts of other libraries may be used: the one place that does.

Invariant: every native part has a fallback with the same results; it is used if ``why_off`` returns a reason,
or the part itself raises NativeOff.
"""

import os
from importlib import import_module
from types import ModuleType

from acktree.core import world
from acktree.core.errors import how_to_install

_EXTRAS = {"aiokafka": "spark-fast", "google": "spark-fast", "llvmlite": "spark", "numba": "spark"}
"""Which extra installs a package."""


class NativeOff(Exception):
    """A native part cannot be used, for the reason given."""


def why_off(part: str = "") -> str:
    """Return why private parts of libraries are not used, "" if they are.

    With ``part``, the name of a module, also why it cannot be imported.
    """
    if world.is_simulated():
        return "the clients are simulated"
    if os.environ.get("ACKTREE_NATIVE") == "off":
        return "ACKTREE_NATIVE=off"
    try:
        if part:
            import_module(part)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        return f"{error}; {how_to_install(extra)}" if extra else str(error)
    except ImportError as error:
        return str(error)
    except RuntimeError as error:
        return f"{error}; set NUMBA_CACHE_DIR to a folder that numba can write to"
    return ""


def native_part(name: str) -> ModuleType:
    """Return a module that uses private parts of libraries. Raises NativeOff."""
    if reason := why_off(name):
        raise NativeOff(reason)
    return import_module(name)
