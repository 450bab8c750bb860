"""The seeded defects are patches of the product as it is."""

import pytest

from simulated.defects import DEFECTS, ROOT, Defect


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_what_a_defect_replaces_stands_in_its_file_once(defect: Defect):
    counts = {path: (ROOT / path).read_text().count(right) for path, right, _ in defect.replacements}
    assert set(counts.values()) == {1}, counts
