"""What --signature asks for: `NAME=KIND[,OPTION=VALUE...]`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tpuserve_exporter.errors import OptionConflict

DEFAULT_SIGNATURE = "serving_default"
TENSOR_KIND = "tensor"
KINDS = (TENSOR_KIND, "image_bytes", "tf_example", "classify", "regress")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class SignatureRequest:
    """One signature to offer. `kind` is one of KINDS, or `pkg.module:function`."""

    name: str
    kind: str = TENSOR_KIND
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "SignatureRequest":
        """`photo=image_bytes,scale=1,size=224x224`. Raises OptionConflict."""
        name, equals, rest = text.partition("=")
        kind, *pairs = (part.strip() for part in rest.split(","))
        if not equals or not kind or _NAME.fullmatch(name) is None:
            raise OptionConflict(f"--signature {text!r} is not of the form NAME=KIND[,OPTION=VALUE...]")
        if kind not in KINDS and ":" not in kind:
            raise OptionConflict(f"--signature {text!r}: the kinds are {', '.join(KINDS)} and pkg.module:function")
        options: dict[str, str] = {}
        for pair in pairs:
            option, equals, value = pair.partition("=")
            if not option or not equals or option in options:
                what = "comes twice" if option in options else "is not of the form OPTION=VALUE"
                raise OptionConflict(f"--signature {text!r}: {pair!r} {what}")
            options[option] = value
        return cls(name, kind, options)

    def check_options(self, *known: str) -> None:
        """Raises OptionConflict for an option that this kind does not know."""
        for option in self.options.keys() - set(known):
            raise OptionConflict(f"{self}: there is no option {option!r}; {self.kind} has {', '.join(known) or 'none'}")

    def __str__(self) -> str:
        return f"--signature {self.name}={self.kind}"


def check_names(requests: "tuple[SignatureRequest, ...]") -> None:
    """Raises OptionConflict for two signatures of one name."""
    names = [request.name for request in requests]
    for name in names:
        if names.count(name) > 1:
            raise OptionConflict(f"--signature {name}=… is given {names.count(name)} times: each name once")
