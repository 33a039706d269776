"""A JAX function as a device part, lowered by JAX from the source's function."""

from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import CannotLower, reason_of
from tpuserve_exporter.models.jax_function import JaxFunction
from tpuserve_exporter.programs.buckets import Bucket
from tpuserve_exporter.programs.lowering import export_function, shape_of
from tpuserve_exporter.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class JaxPart:
    """A device part of a JAX function. Its parameters may be shapes: the served model's variables hold the values."""

    def __init__(self, name: str, signature: Signature, function: JaxFunction) -> None:
        self.name = name
        self.signature = signature
        self._function = function
        self.weights: tuple[str, ...] = tuple(function.params)
        self._shapes: Sequence[Any] = [shape_of(leaf.shape, leaf.dtype) for leaf in function.params.values()]

    def lower(self, bucket: Bucket) -> bytes:
        """Return the program for the bucket's shapes. Raises CannotLower."""
        inputs = [shape_of(bucket.shape(spec), spec.dtype) for spec in self.signature.inputs.values()]
        try:
            return export_function(self._call, [*inputs, *self._shapes], self.name)
        except Exception as error:  # the user's code may raise anything, inside JAX too
            raise CannotLower(
                f"JAX cannot lower the model for a TPU at {bucket.name}: {type(error).__name__}: {reason_of(error)}"
            ) from error

    def _call(self, *arrays: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JAX's tracers
        count = len(self.signature.inputs)
        params = dict(zip(self.weights, arrays[count:], strict=True))
        named: Mapping[str, Any] = dict(zip(self.signature.inputs, arrays[:count], strict=True))
        outputs = self._function.call(params, named)
        return tuple(outputs[name] for name in self.signature.outputs)

    def weight_dtypes(self) -> dict[str, str]:
        """Return the program's dtypes of weights by name. JAX converts 64-bit values to 32 bits."""
        return {name: str(shape.dtype) for name, shape in zip(self.weights, self._shapes, strict=True)}
