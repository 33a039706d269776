"""torch models as served functions, and reference outputs from torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.export import ExportedProgram

from tpuserve_exporter.models.frameworks import quiet
from tpuserve_exporter.models.jax_function import JaxFunction, JaxInput
from tpuserve_exporter.models.jax_serving import ServedJax, Variables, serve_jax
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import ComputeDtype, ModelOptions
from tpuserve_exporter.sources.torch.lowering import JaxProgram, lower, state_names
from tpuserve_exporter.sources.torch.program import RowsFixed, limits_of
from tpuserve_exporter.sources.torch.tensors import Outputs, to_numpy, to_torch
from tpuserve_exporter.terms.signature import Signature, Tensors

if TYPE_CHECKING:
    import tensorflow as tf


class TorchModel(Protocol):
    """A module with its inputs, or a saved program."""

    @property
    def inputs(self) -> Mapping[str, JaxInput]: ...

    @property
    def limit(self) -> int | None:
        """The longest sequence that the model takes, or None if it has no limit."""

    def call(self, tensors: Mapping[str, torch.Tensor]) -> Any:  # noqa: ANN401 - whatever the model returns
        """Return torch's outputs, computed on the CPU."""

    def trace(self, rows: int | None = None) -> ExportedProgram:
        """Return a program for any number of rows, or for `rows`. Raises RowsFixed, OptionConflict and CannotLower."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """Return parameters and buffers by their names in programs."""


class TorchReference:
    """The source model in torch, run eagerly on the CPU to compare the version's outputs with."""

    def __init__(self, model: TorchModel, outputs: Outputs) -> None:
        self._model = model
        self._outputs = outputs

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. The model has one signature, so it ignores `signature`."""
        tensors = {name: to_torch(value) for name, value in inputs.items()}
        with torch.no_grad():
            returned = self._model.call(tensors)
        return {name: to_numpy(value) for name, value in self._outputs.pick_from(returned).items()}

    def release(self) -> None:
        """Release the weights' memory, also for programs of the model, which hold the same tensors.

        The caller must not call `run` afterwards.
        """
        for tensor in self._model.state().values():
            tensor.data = tensor.new_empty(0)


def serve_torch(model: TorchModel, outputs: Outputs, options: ModelOptions) -> ServedJax:
    """Convert a torch model to a served function. Raises OptionConflict, CannotLower and BuilderFailed."""
    lowered = _Lowered(model, outputs, options.compute_dtype, options.batch_sizes[0])
    params = {name: to_numpy(tensor) for name, tensor in lowered.state().items()}
    function = JaxFunction(lowered.call, params, model.inputs, traced=True).limited(lowered.limits)
    if model.limit is not None:
        function = function.limited(dict.fromkeys(function.lengths, model.limit))
    served = serve_jax(function, Variables.of(params), options.batch_sizes, options.sequences.longest)
    return replace(served, function=_with_dtypes(served.function, outputs.dtypes))


class _Lowered:
    """A model's lowered programs: one for any number of rows or, if torch fixes it, one for each requested number.

    `limits` has the largest size of each free dimension that the model's code limits.
    """

    def __init__(self, model: TorchModel, outputs: Outputs, dtype: ComputeDtype, rows: int) -> None:
        self._model = model
        self._outputs = outputs
        self._dtype = dtype
        self._sized: dict[int, JaxProgram] = {}
        self._fixed: RowsFixed | None = None
        try:
            program = model.trace()
        except RowsFixed as error:
            self._fixed = error
            program = model.trace(rows)
        else:
            self._free = lower(program, dtype)
        self._names = set(state_names(program))
        self.limits = limits_of(program, model.inputs)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers that the programs read, by their names there."""
        return {name: tensor for name, tensor in self._model.state().items() if name in self._names}

    def call(self, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the outputs by name, as `JaxFunction.call` does."""
        with quiet():
            return self._call(params, inputs)

    def _call(self, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        state = {name: _cast(value, self._dtype) for name, value in params.items()}
        values = [_cast(inputs[name], self._dtype) for name in self._model.inputs]
        return self._outputs.pick(self._find(inputs)(state, values))

    def _find(self, inputs: Mapping[str, Any]) -> JaxProgram:
        if self._fixed is None:
            return self._free
        rows = next(inputs[name].shape[0] for name, one in self._model.inputs.items() if one.has_rows)
        if not isinstance(rows, int):
            raise self._fixed
        if rows not in self._sized:
            self._sized[rows] = lower(self._model.trace(rows), self._dtype)
        return self._sized[rows]


def _cast(value: Any, dtype: ComputeDtype) -> Any:  # noqa: ANN401 - an array or tracer of JAX
    import jax.numpy as jnp

    return value.astype(dtype) if dtype != "keep" and jnp.issubdtype(value.dtype, jnp.floating) else value


def _with_dtypes(function: ServedFunction, dtypes: Mapping[str, str]) -> ServedFunction:
    """Cast outputs to torch's dtypes. JAX computes 64-bit outputs in 32 bits, and --compute-dtype changes floats."""
    import tensorflow as tf

    def call(**inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        return {name: tf.cast(value, dtypes[name]) for name, value in function.call(**inputs).items()}

    return replace(function, call=call)
