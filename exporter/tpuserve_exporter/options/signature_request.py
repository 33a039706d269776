"""The value of --signature: `NAME=KIND[,OPTION=VALUE...]`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.image_options import IMAGE_OPTIONS, VALUE_OPTIONS, ImageOptions

DEFAULT_SIGNATURE = "serving_default"
TENSOR_KIND = "tensor"
IMAGE_KIND = "image_bytes"
# The options of each kind. A user's function takes its own arguments as options.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    TENSOR_KIND: (),
    IMAGE_KIND: IMAGE_OPTIONS,
    "tf_example": (),
    "classify": ("scores",),
    "regress": ("value",),
}
KINDS = tuple(_OPTIONS)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class SignatureRequest:
    """One requested signature. `kind` is one of KINDS, or `pkg.module:function`."""

    name: str
    kind: str = TENSOR_KIND
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "SignatureRequest":
        """Parse `photo=image_bytes,scale=1,size=224x224`. Raises OptionConflict for errors in the text itself."""
        name, equals, rest = text.partition("=")
        kind, *pairs = (part.strip() for part in rest.split(","))
        if not equals or not kind or _NAME.fullmatch(name) is None:
            raise OptionConflict(f"--signature {text!r} is not of the form NAME=KIND[,OPTION=VALUE...]")
        if kind not in KINDS and ":" not in kind:
            raise OptionConflict(
                f"--signature {text!r}: the kind is unknown. Kinds are {', '.join(KINDS)} and pkg.module:function"
            )
        options: dict[str, str] = {}
        for pair in pairs:
            option, equals, value = pair.partition("=")
            if not option or not equals or option in options:
                what = "is repeated" if option in options else "is not of the form OPTION=VALUE"
                raise OptionConflict(f"--signature {text!r}: {pair!r} {what}")
            options[option] = value
        request = cls(name, kind, options)
        request._check_options()
        return request

    def _check_options(self) -> None:
        known = _OPTIONS.get(self.kind, tuple(self.options))
        for option in self.options:
            if option not in known:
                has = ", ".join(known) or "none"
                raise OptionConflict(f"{self}: there is no option {option!r}. Options of {self.kind}: {has}")
        if self.kind == IMAGE_KIND:
            ImageOptions.read(self.options, str(self))

    def __str__(self) -> str:
        return f"--signature {self.name}={self.kind}"


def check_names(requests: "tuple[SignatureRequest, ...]") -> None:
    """Raise OptionConflict for two signatures with the same name."""
    names = [request.name for request in requests]
    for name in names:
        if names.count(name) > 1:
            raise OptionConflict(f"--signature {name}=… occurs {names.count(name)} times. Use each name once")


def scale_images(requests: "tuple[SignatureRequest, ...]", scale: str | None) -> "tuple[SignatureRequest, ...]":
    """Apply --image-scale to image signatures without options for pixel values.

    Raises OptionConflict if there is no such signature.
    """
    if scale is None:
        return requests
    open_requests = [one for one in requests if one.kind == IMAGE_KIND and not set(VALUE_OPTIONS) & one.options.keys()]
    if not open_requests:
        raise OptionConflict("--image-scale needs an image signature without scale=. Add --signature NAME=image_bytes")
    return tuple(
        replace(one, options={**one.options, "scale": scale}) if one in open_requests else one for one in requests
    )
