"""How `spark run` loads a user's function."""

import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from acktree.spark import app

JOB = """
from pyspark.sql import functions as f

@f.udf("binary")
def same(value):
    return value
"""


def test_a_module_that_needs_a_session_is_left_until_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_a_session.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "needs_a_session", raising=False)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert app._load_before_spark("needs_a_session:same") is None
    with pytest.raises(app.BadFunction, match="no module 'there_is_none'"):
        app._load_before_spark("there_is_none:same")
