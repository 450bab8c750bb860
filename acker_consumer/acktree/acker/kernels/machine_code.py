"""What compiles the inner loops of the table: any change in this folder recompiles all of them."""

from pathlib import Path

from acktree.schemas import batch_codec
from acktree.schemas.compiled_code import Compiler

compiled = Compiler(batch_codec.__file__, *sorted(Path(__file__).parent.glob("*.py")))
