"""Machine code kept on the disk belongs to the sources as they are."""

import numpy as np

from acktree.acker.kernels import finished_roots as judged_roots
from acktree.acker.kernels import fold, machine_code, slots, sweep
from acktree.acker.kernels.machine_code import digest_of
from acktree.acker.kernels.prefetch import prefetch


def test_a_change_in_any_file_gives_all_machine_code_other_names(tmp_path):
    paths = [tmp_path / "one.py", tmp_path / "two.py"]
    for path in paths:
        path.write_text("a = 1\n")
    before = digest_of(paths)
    assert before == digest_of(paths)
    paths[1].write_text("a = 2\n")
    assert digest_of(paths) != before


def test_every_compiled_function_carries_the_digest():
    names = [
        function.py_func.__qualname__
        for module in (fold, judged_roots, slots, sweep)
        for function in vars(module).values()
        if hasattr(function, "py_func")
    ]
    assert len(names) > 20
    assert [name for name in names if not name.endswith(f"_{machine_code._DIGEST}")] == []


def test_a_prefetch_changes_nothing_wherever_it_points():
    rows = np.arange(12, dtype=np.uint64).reshape(4, 3)
    for index in (0, 3, 4, 2**40, 2**64 - 1):
        prefetch(rows, np.uint64(index))
        prefetch(rows[:, 0], np.uint64(index))
    assert rows.ravel().tolist() == list(range(12))
