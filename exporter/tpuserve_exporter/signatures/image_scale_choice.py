"""The choice of an image signature's pixel values: the user's, or else those that the model's arithmetic expects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.image_scale import IMAGE_SCALES, ImageScale, describe_scales
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.signatures.leading import LeadingArithmetic

if TYPE_CHECKING:
    import tensorflow as tf

_BYTES = IMAGE_SCALES["none"]
# The smallest useful range of values for a model that normalizes 0 to 255 itself. Closer values look almost equal.
_LEAST_RANGE = 16.0


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """The chosen values. `note` states a choice of the exporter, `warning` a likely mistake of the user."""

    values: ImageScale
    note: str = ""
    warning: str = ""


def choose_scale(
    request: SignatureRequest,
    chosen: ImageScale | None,
    spec: "tf.TensorSpec",
    find_leading: Callable[[], LeadingArithmetic],
) -> ScaleChoice:
    """Choose the values for the input `spec`. `find_leading` reads the model's graph.

    Raises OptionConflict if neither the user nor the model determines them.
    """
    if chosen is not None:
        _check_integers(request, chosen, spec)
        return ScaleChoice(chosen, warning=_doubt(request, chosen, find_leading()))
    if spec.dtype.is_integer:
        _check_integers(request, _BYTES, spec)
        return ScaleChoice(
            _BYTES, note=f"{request.name} takes pixels as 0..255, because its input is {spec.dtype.name}"
        )
    leading = find_leading()
    if leading.is_for_bytes:
        return ScaleChoice(
            _BYTES, note=f"{request.name} takes pixels as 0..255, because the model begins with {leading}"
        )
    raise OptionConflict(
        f"{request}: {_explain(leading)} which pixel values it was trained with. Add --image-scale with one "
        f"of {describe_scales()}"
    )


def _explain(leading: LeadingArithmetic) -> str:
    if leading.is_for_units:
        return f"the model begins with {leading}, which suggests 0..1 but does not prove"
    if str(leading):
        return f"the model begins with {leading}, which does not show"
    return "the model does not show"


def _doubt(request: SignatureRequest, chosen: ImageScale, leading: LeadingArithmetic) -> str:
    """Return the reason why the given values are likely wrong, or an empty text."""
    low, high = _ends(chosen)
    if not leading.is_for_bytes or high - low >= _LEAST_RANGE:
        return ""
    return (
        f"{request.name} feeds pixels as {low:.3g}..{high:.3g}, but the model itself begins with {leading}, which "
        "expects 0..255. The images are probably scaled twice. Use --image-scale none"
    )


def _ends(values: ImageScale) -> tuple[float, float]:
    """Return the smallest and the largest value of black and white over all channels."""
    ends = [(value * values.scale - mean) / std for value in (0, 255) for mean in values.mean for std in values.std]
    return min(ends), max(ends)


def _check_integers(request: SignatureRequest, values: ImageScale, spec: "tf.TensorSpec") -> None:
    """Raise OptionConflict if the input's integers cannot hold the values, or round most of them away."""
    low, high = _ends(values)
    if not spec.dtype.is_integer or (spec.dtype.min <= low and high <= spec.dtype.max and high - low >= _LEAST_RANGE):
        return
    raise OptionConflict(
        f"{request}: pixels as {low:.3g}..{high:.3g} do not fit the input's "
        f"{spec.dtype.name} ({spec.dtype.min}..{spec.dtype.max}). Set other values, such as scale=1,mean=128 for "
        "-128..127"
    )
