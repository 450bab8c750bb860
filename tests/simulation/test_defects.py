"""The seeded defects are patches of the product as it is."""

import pytest

from simulation.defects import DEFECTS, ROOT, main


def test_each_text_that_a_defect_replaces_is_in_its_file_once():
    counts = {
        (defect.name, path): (ROOT / path).read_text().count(right)
        for defect in DEFECTS
        for path, right, _ in defect.replacements
    }
    assert {where: count for where, count in counts.items() if count != 1} == {}


def test_an_unknown_defect_is_an_error_that_lists_the_names(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["defects.py", "time out in half"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert "unknown defect 'time out in half'" in printed
    assert all(defect.name in printed for defect in DEFECTS)
