"""Has the processor fetch memory into its cache before it is needed; for compiled loops only.

It changes no data: an address behind the end of an array does no harm. How an instruction is emitted:
https://numba.readthedocs.io/en/stable/extending/high-level.html#implementing-intrinsics
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from acktree.acker.kernels.machine_code import compiled

_TO_WRITE, _MANY_TIMES, _DATA = 1, 3, 1


def _typed(_typing: Any, array: Any, index: Any) -> Any:
    """Return the type of a prefetch and its emitter."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, _ = signature.args
        rows = context.make_array(array_type)(context, builder, arguments[0])
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        row_bytes = builder.extract_value(rows.strides, 0)
        start = builder.ptrtoint(rows.data, row_bytes.type)
        address = builder.inttoptr(builder.add(start, builder.mul(arguments[1], row_bytes)), pointer)
        function_type = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
        builder.call(function, [address, *map(number, (_TO_WRITE, _MANY_TIMES, _DATA))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), emit


_prefetch: Any = intrinsic(_typed)


@compiled
def prefetch(array: Any, index: Any) -> None:
    """Prefetch the cache line in which ``array[index]`` begins; ``index`` is an unsigned 64-bit number."""
    _prefetch(array, index)
