"""Compiles the inner loops of the table: any change in this folder recompiles all of them."""

from pathlib import Path

from acktree.wire import batch_codec
from acktree.wire.compiled_code import Compiler

compiled = Compiler(batch_codec.__file__, *sorted(Path(__file__).parent.glob("*.py")))
