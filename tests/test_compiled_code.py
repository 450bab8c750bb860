"""Machine code kept on the disk belongs to the sources as they are."""

import re

import numpy as np

from acktree.acker.folding import validation
from acktree.acker.kernels import finished_roots, fold, slots, sweep
from acktree.acker.kernels.prefetch import prefetch
from acktree.producers.collecting.arithmetic import fold_loop
from acktree.spark.native import batch_loop, columns_in
from acktree.wire import batch_codec
from acktree.wire.compiled_code import digest_of

KERNELS = (fold, finished_roots, slots, sweep)


def names_in(*modules) -> set[str]:
    """Return the names of the compiled functions that modules define, with the digests of their sources."""
    return {
        function.py_func.__qualname__
        for module in modules
        for function in vars(module).values()
        if hasattr(function, "py_func") and function.py_func.__module__ == module.__name__
    }


def test_a_change_in_any_file_gives_all_machine_code_other_names(tmp_path):
    paths = [tmp_path / "one.py", tmp_path / "two.py"]
    for path in paths:
        path.write_text("a = 1\n")
    before = digest_of(paths)
    assert before == digest_of(paths)
    paths[1].write_text("a = 2\n")
    assert digest_of(paths) != before


def test_all_kernels_of_the_acker_have_one_digest():
    names = names_in(*KERNELS)
    assert len(names) > 20
    assert len({name[-8:] for name in names}) == 1


def test_every_compiled_function_carries_a_digest_of_its_sources():
    modules = (
        *KERNELS,
        batch_codec,
        validation,
        fold_loop,
        batch_loop,
        columns_in.compiled_loops(),
    )
    for module in modules:
        names = names_in(module)
        assert names, module.__name__
        assert [name for name in names if not re.search(r"_[0-9a-f]{8}$", name)] == []


def test_a_prefetch_changes_nothing_wherever_it_points():
    rows = np.arange(12, dtype=np.uint64).reshape(4, 3)
    for index in (0, 3, 4, 2**40, 2**64 - 1):
        prefetch(rows, np.uint64(index))
        prefetch(rows[:, 0], np.uint64(index))
    assert rows.ravel().tolist() == list(range(12))
