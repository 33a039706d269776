"""Parse a Dockerfile into named stages of instructions. Heredocs and quoted `#` are not supported."""

import json
import re
from dataclasses import dataclass, replace
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
class Stage:
    """The instructions after a FROM. `base` is an earlier stage, or the name of an image."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A parsed Dockerfile. `arguments` are those before the first FROM, and `stages` are by name, in order."""

    arguments: dict[str, str]
    stages: dict[str, Stage]

    @property
    def final(self) -> tuple[Instruction, ...]:
        """The instructions of the default target."""
        return self.target(list(self.stages)[-1])

    def target(self, name: str) -> tuple[Instruction, ...]:
        """Return the instructions of a stage, after those of the stages that it is based on."""
        stage = self.stages[name]
        before = self.target(stage.base) if stage.base in self.stages else ()
        return (*before, *stage.instructions)

    def images(self) -> set[str]:
        """Return the images that stages are based on, with the arguments before the first FROM substituted."""
        names = {stage.base for stage in self.stages.values()} - self.stages.keys()
        return {re.sub(r"\$\{(\w+)}", lambda match: self.arguments[match[1]], name) for name in names}


def instruction(stage: tuple[Instruction, ...], name: str) -> Instruction:
    """Return the only instruction of that name."""
    (found,) = (each for each in stage if each.name == name)
    return found


def environment(stage: tuple[Instruction, ...]) -> dict[str, str]:
    """Return the variables that the ENV instructions set, unexpanded."""
    return dict(word.split("=", 1) for each in stage if each.name == "ENV" for word in each.words)


def read_dockerfile(path: Path = ROOT / "Dockerfile") -> Dockerfile:
    """Read a Dockerfile, by default the repository's."""
    lines = [
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in joined.splitlines():
        name, text = line.split(maxsplit=1)
        if name == "FROM":
            base, _, name = text.split()
            stages.append(Stage(name, base, ()))
        elif stages:
            last = stages[-1]
            stages[-1] = replace(last, instructions=(*last.instructions, Instruction(name, text)))
        else:
            key, _, value = text.partition("=")
            arguments[key] = value
    return Dockerfile(arguments, {stage.name: stage for stage in stages})
