"""The extra `spark` alone has no aiokafka: everything imports, and tasks write by librdkafka."""

import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.core.errors import how_to_install
from acktree.spark.tasks.writing.transactions import BATCHES
from spark.tester import StageTester

LACKING = """raise ModuleNotFoundError("No module named 'aiokafka'", name="aiokafka")\n"""
REASON = f"No module named 'aiokafka'; {how_to_install('spark-fast')}"


def test_sparks_package_imports_without_aiokafka_and_says_which_extra_has_it(tmp_path: Path):
    (tmp_path / "aiokafka.py").write_text(LACKING)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from acktree.spark import app, daemon, sink, source, stage, warm_up
from acktree.spark.native.switch import why_off
print(why_off())
print(why_off({BATCHES!r}))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["", REASON], ran.stderr


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stage_without_aiokafka_writes_by_librdkafka_and_every_tree_is_done(
    spark: SparkSession,
    tester: StageTester,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    (tmp_path / "aiokafka.py").write_text(LACKING)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path))  # of all Python workers
    monkeypatch.setitem(sys.modules, BATCHES, None)  # and here
    caplog.set_level(logging.INFO, "acktree.spark")

    @f.udf("string")
    def why(_):
        from acktree.spark.native.switch import why_off
        from acktree.spark.tasks.writing.transactions import BATCHES

        return why_off(BATCHES)

    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        return {f"{tester.name}.a": rows.select(why("value").alias("value"), "anchors")}

    tester.send(["x"] * 300)
    tester.start(transform)
    tester.until_the_end()
    assert Counter(value.decode() for _, value, _ in tester.tuples) == {REASON: 300}
    assert len(tester.inits) == 300
    assert not tester.twice
    assert tester.committed() == [300, 0]
    assert "tasks write record by record" in caplog.text
