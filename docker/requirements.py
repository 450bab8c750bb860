"""Print what extras of a pyproject.toml need, one requirement a line, the project itself left out."""

import re
import sys
import tomllib
from collections.abc import Iterator


def needed(project: dict, extras: list[str]) -> Iterator[str]:
    """Yield the requirements of the extras; one that names the project's own extras stands for those."""
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
            if own:
                yield from needed(project, own[1].split(","))
            else:
                yield requirement


with open(sys.argv[1], "rb") as file:
    described = tomllib.load(file)["project"]
print(*described["dependencies"], *needed(described, sys.argv[2:]), sep="\n")
