"""Names of container images: `registry.example.com:5000/tpuserve-server:0.1.0-tpu`, or with a digest."""

import re
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_exporter.errors import OptionConflict

_FORM: Final = re.compile(
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
        found = _FORM.fullmatch(text.strip())
        if found is None or not (found["tag"] or found["digest"]):
            raise OptionConflict(f"{text!r} is not an image. Write NAME:TAG or NAME@sha256:DIGEST")
        return cls(found["name"], found["tag"], found["digest"])

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"
