"""Parse a Dockerfile into stages of instructions. Heredocs and quoted `#` are not supported."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction with its continuation lines joined and without comments."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments, split at whitespace."""
        return self.text.split()

    @property
    def exec_form(self) -> list[str]:
        """The arguments of the JSON form.

        Raises:
            ValueError: The instruction is in the shell form.
        """
        return [str(word) for word in json.loads(self.text[self.text.index("[") :])]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A parsed Dockerfile.

    ``arguments`` are those before the first FROM. A stage contains the instructions after its FROM.
    """

    arguments: dict[str, str]
    bases: tuple[str, ...]
    stages: tuple[tuple[Instruction, ...], ...]

    @property
    def final(self) -> tuple[Instruction, ...]:
        """The instructions of the stage that becomes the image."""
        return self.stages[-1]

    def base(self, stage: int) -> str:
        """Return the base image of a stage, with the arguments before the first FROM substituted."""
        return re.sub(r"\$\{(\w+)}", lambda match: self.arguments[match[1]], self.bases[stage])


def instruction(stage: tuple[Instruction, ...], name: str) -> Instruction:
    """Return the stage's only instruction of that name."""
    (found,) = (each for each in stage if each.name == name)
    return found


def environment(stage: tuple[Instruction, ...]) -> dict[str, str]:
    """Return the variables that the stage's ENV instructions set, unexpanded."""
    return dict(word.split("=", 1) for each in stage if each.name == "ENV" for word in each.words)


def arguments(stage: tuple[Instruction, ...]) -> dict[str, str]:
    """Return the defaults of the stage's ARG instructions."""
    return dict(each.text.split("=", 1) for each in stage if each.name == "ARG")


def read_dockerfile(path: Path = ROOT / "Dockerfile") -> Dockerfile:
    """Read a Dockerfile, by default the repository's."""
    lines = [
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    arguments: dict[str, str] = {}
    bases: list[str] = []
    stages: list[list[Instruction]] = []
    for line in joined.splitlines():
        name, text = line.split(maxsplit=1)
        if name == "FROM":
            bases.append(text.split()[0])
            stages.append([])
        elif stages:
            stages[-1].append(Instruction(name, text))
        else:
            key, _, value = text.partition("=")
            arguments[key] = value
    return Dockerfile(arguments, tuple(bases), tuple(map(tuple, stages)))
