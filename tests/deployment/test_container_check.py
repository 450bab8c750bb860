"""What `make check-containers` needs is installed, or named; the check itself needs an engine and minutes."""

import os
import shutil

import pytest

from containers import check


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The programs that seem to be here; those that apt-get is asked for, are from then on."""
    found = {"apt-get", "podman"}

    def run(*command: str, **_environment: str) -> str:
        assert command[0] == "apt-get"
        found.update(name for name in command[2:] if not name.startswith("-"))
        return ""

    monkeypatch.setattr(shutil, "which", lambda name, path=None: name if name in found else None)
    monkeypatch.setattr(check, "run", run)
    return found


def test_missing_programs_are_installed_for_root(installed: set[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    check.install_missing()
    assert installed == {"apt-get", *check.PROGRAMS}


def test_others_are_shown_how_to_install_missing_programs(
    installed: set[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"sudo apt-get install runc iptables netavark aardvark-dns$"):
        check.install_missing()


def test_nothing_is_installed_where_nothing_is_missing(installed: set[str], monkeypatch: pytest.MonkeyPatch):
    installed.update(check.PROGRAMS)
    monkeypatch.setattr(check, "run", None)
    check.install_missing()
