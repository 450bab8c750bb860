"""Temporary folders: gone at the end, and after a kill at the next start; those of the living stay."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from acktree.core.temporary_folder import remove_abandoned, temporary_folder

HOLD = """
import sys
from acktree.core.temporary_folder import temporary_folder
with temporary_folder("held") as folder:
    (folder / "data").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def hold() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a folder, and return both."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_at_the_end(temporary: Path):
    with temporary_folder("mine") as folder:
        assert folder.parent == temporary
        (folder / "data").write_text("much")
    assert list(temporary.iterdir()) == []


def test_the_next_start_removes_the_folders_of_killed_processes_and_of_no_others():
    (dead, left), (living, kept) = hold(), hold()
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    assert left.is_dir()
    third, _ = hold()
    assert not left.exists()
    assert (kept / "data").is_dir()
    for process in (living, third):
        process.communicate("")
    assert not kept.exists()


def test_other_folders_stay(temporary: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / ".owner").touch()
    (temporary / "acktree-linked").symlink_to(elsewhere)
    for name in ("acktree-without-owner", "other"):
        (temporary / name).mkdir()
    (temporary / "other" / ".owner").touch()
    (temporary / "acktree-owner-is-a-link").mkdir()
    os.symlink(elsewhere / ".owner", temporary / "acktree-owner-is-a-link" / ".owner")
    process, _ = hold()
    process.communicate("")
    assert {entry.name for entry in temporary.iterdir()} == {
        "acktree-linked",
        "acktree-without-owner",
        "other",
        "acktree-owner-is-a-link",
    }
    assert (elsewhere / ".owner").exists()


def test_a_folder_that_its_owner_removes_meanwhile_causes_no_error(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    ended = temporary / "acktree-ended"
    ended.mkdir()
    list_folder = os.scandir

    def list_then_remove(parent: str) -> contextlib.AbstractContextManager[list[os.DirEntry[str]]]:
        with list_folder(parent) as entries:
            found = list(entries)
        ended.rmdir()
        return contextlib.nullcontext(found)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", list_then_remove)
        remove_abandoned(str(temporary))
    assert not ended.exists()
