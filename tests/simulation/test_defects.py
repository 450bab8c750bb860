"""The seeded defects are patches of the product as it is."""

from simulation.defects import DEFECTS, ROOT


def test_what_each_defect_replaces_is_in_its_file_once():
    counts = {
        (defect.name, path): (ROOT / path).read_text().count(right)
        for defect in DEFECTS
        for path, right, _ in defect.replacements
    }
    assert {where: count for where, count in counts.items() if count != 1} == {}
