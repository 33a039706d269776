"""Names in a deployment: container images and the served model."""

import re
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_exporter.errors import OptionConflict

_IMAGE: Final = re.compile(
    r"(?P<name>[a-zA-Z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Image:
    """A name with a tag, a digest, or both. A digest has precedence, as in Kubernetes."""

    name: str
    tag: str | None
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME:TAG` or `NAME@sha256:DIGEST`. Raises OptionConflict."""
        found = _IMAGE.fullmatch(text.strip())
        if found is None or not (found["tag"] or found["digest"]):
            raise OptionConflict(f"{text!r} is not an image. Write NAME:TAG or NAME@sha256:DIGEST")
        return cls(found["name"], found["tag"], found["digest"])

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"


_MODEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)


def choose_name(name: str | None, default: str) -> str:
    """Return `name`, or `default` if it is None.

    Raises OptionConflict for characters that could have another meaning in a manifest or a command.
    """
    chosen = default if name is None else name
    if not _MODEL.fullmatch(chosen):
        raise OptionConflict(
            f"{chosen!r} is not a model name of up to 63 letters, digits, '-', '_' and '.'. Set another --model-name"
        )
    return chosen
