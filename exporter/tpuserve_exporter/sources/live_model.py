"""Opens a model of this process, such as one at the end of a training script. It reads nothing from disk."""

from typing import TYPE_CHECKING, Any, TypeGuard

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.keras_serving import described_dtype, is_changed, serve_keras
from tpuserve_exporter.models.ragged import dense_function
from tpuserve_exporter.models.served_function import ServedFunction, TracedReference
from tpuserve_exporter.models.weights_check import named_variables
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.variables.matching import model_variables
from tpuserve_exporter.sources.variables.state_matching import check_filled, origins_of_states
from tpuserve_exporter.terms.provenance import LIVE

if TYPE_CHECKING:
    import keras

_TAKEN = "a path, a Keras model, (apply_fn, params) of a JAX model, a Flax NNX or torch module, or a ServedFunction"


def open_live(model: object, options: ModelOptions) -> OpenedSource:
    """Open a model of this process.

    Raises:
        OptionConflict: if the model is of another type, or an option applies only to files.
        BuilderFailed: if the model or a parameter cannot be served.
        CheckpointMismatch: if a layer has no vocabulary or statistics yet.
    """
    checkpoint_options = {
        "model": options.builder, "rename": options.renames, "allow_missing": options.allow_missing,
        "allow_unused": options.allow_unused, "weights": options.weights not in ("auto", "raw"),
    }  # fmt: skip
    if named := [name for name, value in checkpoint_options.items() if value]:
        raise OptionConflict(
            f"{', '.join(named)} applies only to checkpoints, but a live model already has its weights"
        )
    if options.int8 and not _is_keras(model):
        raise OptionConflict("int8 quantizes only Keras models in files. Quantize the model before the export")
    if isinstance(model, ServedFunction):
        function = dense_function(model)
        values = {name: LIVE for name, _ in named_variables(model.trackables)}
        return OpenedSource("function", "function", function, TracedReference(function), values=values)
    if _is_keras(model):
        return _open_keras(model, options)
    if isinstance(model, tuple) or "flax" in _modules(model):
        return _open_jax(model, options)
    if "torch" in _modules(model):
        return _open_torch(model, options)
    raise OptionConflict(f"cannot export {_describe(model)}. Pass {_TAKEN}")


def _is_keras(model: object) -> "TypeGuard[keras.Model]":
    import keras

    return isinstance(model, keras.Model)


def _open_keras(model: "keras.Model", options: ModelOptions) -> OpenedSource:

    if is_changed(options):
        raise OptionConflict("compute_dtype and int8 would change the live model. Save it, and export the file")
    check_filled(model, f"the model {model.name}")
    return OpenedSource(
        kind="keras",
        name=model.name,
        model=serve_keras(model, options),
        reference=TracedReference(serve_keras(model, options)),
        compute_dtype=described_dtype(model),
        values={**dict.fromkeys((one.name for one in model_variables(model)), LIVE), **origins_of_states(model, LIVE)},
    )


def _open_jax(model: object, options: ModelOptions) -> OpenedSource:
    from tpuserve_exporter.models.jax_function import JaxFunction, JaxReference
    from tpuserve_exporter.models.jax_model import read_inputs, understand_live
    from tpuserve_exporter.models.jax_serving import Variables, serve_jax

    inputs = read_inputs(options)
    understood = understand_live(model, options, inputs)
    function = JaxFunction(understood.by_name(), understood.arrays, inputs, scalars=understood.tree.scalars)
    served = serve_jax(function, Variables.of(understood.arrays), options.batch_sizes, options.sequences.longest)
    return OpenedSource(
        kind="function",
        name=_describe(model),
        model=served.function,
        reference=JaxReference(function),
        compute_dtype=served.compute_dtype,
        notes=served.notes,
        jax=served.source,
        values=dict.fromkeys(understood.tree.paths, LIVE),
    )


def _open_torch(model: object, options: ModelOptions) -> OpenedSource:
    from tpuserve_exporter.sources.kinds import require_packages

    require_packages("torch", _describe(model))
    from tpuserve_exporter.sources.torch.file import open_live_torch

    return open_live_torch(model, _describe(model), options)


def _modules(value: object) -> set[str]:
    return {base.__module__.partition(".")[0] for base in type(value).__mro__}


def _describe(value: Any) -> str:  # noqa: ANN401 - any object from a user
    if isinstance(value, tuple) and value and callable(value[0]):
        return str(getattr(value[0], "__name__", "function"))
    return f"{type(value).__module__}.{type(value).__qualname__}"
