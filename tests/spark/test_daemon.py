"""How a local Spark and its Python workers begin: with all they need loaded, and no more tasks than cores."""

import inspect
import os
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from acktree.spark.native.spark_home import plain_files


def test_workers_begin_with_all_that_tasks_import(spark: SparkSession):
    def what_is_there(_: int) -> tuple[set[str], list[str], int]:
        import gc
        import sys

        return set(sys.modules), sys.path, gc.get_freeze_count()

    ((modules, paths, frozen),) = spark.sparkContext.parallelize([0], 1).map(what_is_there).collect()
    assert {
        "acktree.spark.source",
        "acktree.spark.stage",
        "acktree.producers.collecting.arithmetic.fold_loop",
        "numba",
    } <= modules
    assert {
        "acktree.spark.tasks.writing.batch_transaction",
        "acktree.spark.native.batch_loop",
    } <= modules
    assert not [path for path in paths if path.endswith(".zip") and Path(path).exists() and "spark" in path]
    assert frozen


def test_a_worker_whose_socket_spark_has_closed_prints_no_stack(capsys: pytest.CaptureFixture[str]):
    from pyspark import daemon as sparks

    from acktree.spark import daemon  # noqa: F401

    text = "PySpark daemon failed to flush the output to the worker process"
    assert "print(" in inspect.getsource(sparks.worker)
    assert text in inspect.getsource(sparks.worker)
    for error in (BrokenPipeError(), ConnectionResetError(), OSError("no space left")):
        try:
            raise error
        except OSError:
            sparks.print(text, error)
    assert capsys.readouterr().out == f"{text} no space left\n"


def test_a_spark_home_set_by_the_user_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with plain_files():
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_workers_of_another_interpreter_find_pyspark_where_spark_has_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    with plain_files():
        assert "SPARK_HOME" not in os.environ


def test_the_home_has_no_zip_files_and_is_not_another_sparks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with plain_files():
        home = Path(os.environ["SPARK_HOME"])
        assert (home / "jars").samefile(Path(pyspark.__file__).parent / "jars")
        assert not (home / "python").exists()
    assert "SPARK_HOME" not in os.environ


def test_a_local_spark_shuffles_in_as_many_partitions_as_it_has_cores(spark: SparkSession):
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(os.cpu_count())
