"""The same split without Spark: every line becomes one tuple per word; a blank line becomes none."""

from acktree.producers import Child, stage


@stage(name="lines", reads="lines", emits="words", emits_as=str)
def words(line: str) -> list[Child]:
    """Return a tuple per word: value is "<place in the line> <word>", key the word."""
    return [Child(f"{place} {word}", key=word) for place, word in enumerate(line.split())]
