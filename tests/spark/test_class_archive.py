"""The archive of Spark's classes: used where there is one, never needed, whole or not there at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from acktree.spark.native import spark_home
from acktree.spark.runtime import class_archive
from acktree.spark.runtime.class_archive import NoArchive, archive_path, make_archive, options_to_use


@pytest.fixture
def cache(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "acktree"


def test_an_archive_is_used_once_it_is_there(cache: Path):
    assert options_to_use() == ""
    archive_path().touch()
    assert options_to_use().startswith(f" -XX:SharedArchiveFile={archive_path()} ")


def test_no_archive_is_used_with_an_unusable_name_or_without_a_folder(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with blank"))
    archive_path().touch()
    assert options_to_use() == ""
    with pytest.raises(NoArchive, match="contains a space"):
        make_archive()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert options_to_use() == ""


def test_another_java_or_spark_has_its_own_archive(cache: Path, monkeypatch):
    ours = archive_path()
    monkeypatch.setenv("JAVA_HOME", "/opt/another")
    others = archive_path()
    monkeypatch.setattr(class_archive.pyspark, "__version__", "0.1")
    assert len({ours, others, archive_path()}) == 3


def test_a_jvm_that_does_not_start_leaves_no_archive_and_the_reason(cache: Path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/opt/nothing")
    with pytest.raises(NoArchive, match=r"did not write an archive of its classes: \S"):
        make_archive()
    assert not list(cache.glob("*.jsa*"))


@pytest.mark.slow
def test_a_session_starts_from_the_archive_that_was_made(cache: Path):
    path = make_archive()
    assert path.stat().st_size > 50e6
    code = "from acktree.spark import app; app.make_session('t', app.options_to_use() + ' -Xlog:class+load')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [
        line for line in done.stdout.splitlines() if "[class,load]" in line and "org.apache.spark" in line
    ]
    shared = [line for line in loaded if "shared objects file (top)" in line]
    assert len(shared) > len(loaded) / 2 > 500
    assert list(cache.glob("*.jsa*")) == [path]


def test_each_pyspark_has_one_home_and_a_process_without_a_cache_its_own(cache: Path, monkeypatch):
    homes = []
    for _ in range(2):
        monkeypatch.delenv("SPARK_HOME", raising=False)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        with spark_home.plain_files():
            homes.append(Path(os.environ["SPARK_HOME"]))
            assert sorted(part.name for part in homes[-1].iterdir()) == ["bin", "jars", "sbin"]
    assert homes[0] == homes[1]
    assert homes[0].parent == cache
    assert [path.name for path in cache.iterdir()] == [homes[0].name]
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with spark_home.plain_files():
        assert cache not in Path(os.environ["SPARK_HOME"]).parents
        assert (Path(os.environ["SPARK_HOME"]) / "jars").is_dir()
