"""Opens Hugging Face directories, with the model's class in transformers.

The exporter reads the weights itself, so that no pickle runs code. transformers builds the model and converts names of
older releases. It neither downloads anything nor runs code from the directory (`trust_remote_code`).
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tpuserve_exporter.errors import (
    BuilderFailed,
    CannotLower,
    CheckpointMismatch,
    MissingExtra,
    OptionConflict,
    SourceUnreadable,
    reason_of,
)
from tpuserve_exporter.models.builder import find_builder
from tpuserve_exporter.models.frameworks import quiet
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.options.export_options import ModelOptions, rename
from tpuserve_exporter.sources.hugging_face_directory import find_weights, read_config
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.torch.file import read_inputs, serve_opened
from tpuserve_exporter.sources.torch.hugging_face_inputs import known_inputs, longest_sequence, parameters_of
from tpuserve_exporter.sources.torch.program import Module
from tpuserve_exporter.sources.torch.tensors import Outputs, dtype_name
from tpuserve_exporter.sources.torch.weights_file import read_weights
from tpuserve_exporter.terms.restore_report import ArraySpec, Entry, Fate, RestoreReport, allow

# Implementations as plain products of fixed shapes, which the exporter lowers. Others call kernels or depend on values.
_IMPLEMENTATIONS = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
# Arguments of `forward` that make the model return names, and neither caches nor training's loss.
_FORWARD = {"return_dict": True, "use_cache": False}
# Outputs for the next call with the same text.
_CACHES = ("past_key_values", "mems")


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Read, restore and lower the model. Raises the errors of `torch.file.open_source`."""
    stored = read_config(source)
    weights = find_weights(source)
    if stored is None or weights is None:
        raise SourceUnreadable(
            f"{source} is not a directory of transformers, which contains config.json and model.safetensors or "
            "pytorch_model.bin. Save the model with model.save_pretrained(DIRECTORY)"
        )
    _refuse_quantized(stored, source)
    with quiet(), _without_progress(), _import_errors(source.name):
        model_class = _find_class(source, stored, options)
        config = _read_settings(model_class, source, options)
        model, report = _load(model_class, config, source, weights, options)
    inputs = _choose_inputs(model, source, options)
    _serve_names(model, inputs, options.outputs)
    limit = longest_sequence(model)
    _check_buckets(limit, options, source.name)
    module = Module(model.eval(), inputs, options.sequences.longest, limit)
    outputs = Outputs.read(module.returned(), options.outputs)
    return serve_opened("huggingface", source.name, module, outputs, options, None, report)


@contextlib.contextmanager
def _without_progress() -> Iterator[None]:
    """Hide the progress bars of transformers, which may be on in the user's process."""
    from transformers.utils import logging

    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _import_errors(name: str) -> Iterator[None]:
    """Turn a missing package that the model's class needs, such as timm, into MissingExtra."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"the class of {name} needs another package: {reason_of(error)}") from error


def _refuse_quantized(stored: Mapping[str, Any], source: Path) -> None:
    if method := (stored.get("quantization_config") or {}).get("quant_method"):
        raise CannotLower(
            f"{source.name} is quantized ({method}), and its kernels are for GPUs. Export the model from before the "
            "quantization, or save it again after model.dequantize()"
        )


def _find_class(source: Path, stored: Mapping[str, Any], options: ModelOptions) -> Any:  # noqa: ANN401 - a model's class
    """Return the class of --model, or of `architectures` in config.json. Raises OptionConflict and BuilderFailed."""
    import transformers

    if options.builder is not None:
        named = find_builder(options.builder)
        if not isinstance(named, type) or not issubclass(named, transformers.PreTrainedModel):
            raise OptionConflict(
                f"{options.builder} is no model class of transformers, such as transformers:BertModel. Use --from "
                "torch to load the weights into a module of your own"
            )
        return named
    names = [name for name in stored.get("architectures") or () if isinstance(name, str)]
    found: Any = getattr(transformers, names[0], None) if names else _base_class(stored)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        name = names[0] if names else str(stored.get("model_type"))
        code = ". Its code is in the directory, and the exporter does not run it" if "auto_map" in stored else ""
        raise BuilderFailed(
            f"the installed transformers has no PyTorch model {name}, which config.json of {source.name} names{code}. "
            f"Name a class with --model transformers:CLASS, or a function that builds the module with "
            "--from torch --model pkg.module:function"
        )
    return found


def _base_class(stored: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the class without a head for the configuration's model_type, or None."""
    import transformers

    kinds = transformers.CONFIG_MAPPING
    kind = str(stored.get("model_type"))
    return transformers.MODEL_MAPPING.get(kinds[kind], None) if kind in kinds else None


def _read_settings(model_class: Any, source: Path, options: ModelOptions) -> Any:  # noqa: ANN401
    """Return the configuration with the settings of --model-arg. Raises BuilderFailed."""
    settings = {name: value for name, value in options.builder_args.items() if name not in _IMPLEMENTATIONS}
    try:
        config = model_class.config_class.from_pretrained(source, local_files_only=True)
    except ImportError:
        raise
    except Exception as error:  # transformers raises many kinds of errors
        raise SourceUnreadable(f"cannot read config.json of {source.name}: {reason_of(error)}") from error
    if unknown := [name for name in settings if not hasattr(config, name)]:
        raise BuilderFailed(f"--model-arg {', '.join(unknown)}: {type(config).__name__} has no such setting")
    for name, value in ({"use_cache": False} | settings).items():
        if hasattr(config, name):
            setattr(config, name, value)
    return config


def _load(
    model_class: Any,  # noqa: ANN401
    config: Any,  # noqa: ANN401
    source: Path,
    weights: Path,
    options: ModelOptions,
) -> tuple[Any, RestoreReport]:
    """Build the model with the stored weights. Raises CheckpointMismatch and BuilderFailed."""
    sets = read_weights(weights, options.unsafe).sets
    if set(sets) != {""}:
        raise CheckpointMismatch(f"{weights.name} contains several sets of weights ({', '.join(sets)}) instead of one")
    stored = {rename(name, options.renames): tensor for name, tensor in sets[""].items()}
    try:
        model, found = model_class.from_pretrained(
            None,
            config=config,
            state_dict=dict(stored),
            ignore_mismatched_sizes=True,
            local_files_only=True,
            output_loading_info=True,
            **{name: options.builder_args.get(name, default) for name, default in _IMPLEMENTATIONS.items()},
        )
    except ImportError:
        raise
    except Exception as error:  # transformers raises many kinds of errors
        raise BuilderFailed(
            f"{model_class.__name__} of transformers failed for {source.name}: {type(error).__name__}: "
            f"{reason_of(error)}"
        ) from error
    report = RestoreReport(
        allow(list(_compare(model, stored, found)), options.allow_missing, options.allow_unused),
        notes=tuple(_explain(found)),
    )
    if report.problems:
        what = f"{source.name} does not fit {model_class.__name__} of transformers"
        raise CheckpointMismatch(report.refusal(what), restore=report)
    return model, report


def _compare(
    model: Any,  # noqa: ANN401
    stored: Mapping[str, torch.Tensor],
    found: Mapping[str, Any],
) -> Iterator[Entry]:
    """Compare the model's tensors with the stored ones, as transformers loaded them.

    Names that transformers converted have no stored tensor of the same name.
    """
    shapes = {name: tuple(shape) for name, shape, _ in found["mismatched_keys"]}
    missing = set(found["missing_keys"]) - set(shapes)
    for name, tensor in model.state_dict().items():
        wanted = ArraySpec(dtype_name(tensor.dtype), tuple(tensor.shape))
        dtype = dtype_name(stored[name].dtype) if name in stored else wanted.dtype
        loaded = ArraySpec(dtype, shapes.get(name, wanted.shape))
        yield Entry.compare(name, wanted, None if name in missing else loaded)
    for name in found["unexpected_keys"]:
        spec = f"{dtype_name(stored[name].dtype)}{list(stored[name].shape)}" if name in stored else None
        yield Entry(name, Fate.UNUSED, checkpoint=spec)


def _explain(found: Mapping[str, Any]) -> Iterator[str]:
    if messages := found["error_msgs"]:
        yield f"transformers reported while it loaded the weights: {'; '.join(messages)}"


def _choose_inputs(model: Any, source: Path, options: ModelOptions) -> dict[str, JaxInput]:  # noqa: ANN401
    """Return the inputs of --input, which need no dtype and shape if the configuration shows them, or all of these.

    Raises OptionConflict.
    """
    known = known_inputs(model, source)
    if known and not options.inputs:
        return known
    named = [one.name for one in options.inputs]
    if named and all(one.dims is not None or one.name in known for one in options.inputs):
        unknown = [name for name in named if name not in parameters_of(model)]
        if unknown:
            raise OptionConflict(
                f"--input {', '.join(unknown)}: {type(model).__name__} takes no such input. Its forward takes "
                f"{', '.join(parameters_of(model))}"
            )
        described = read_inputs([one for one in options.inputs if one.dims is not None])
        return {name: described.get(name) or known[name] for name in named}
    raise OptionConflict(
        f"the configuration of {source.name} does not show the inputs of {type(model).__name__}. Describe each with "
        f"--input 'name:dtype[batch,...]'. Its forward takes {', '.join(parameters_of(model))}"
    )


def _check_buckets(limit: int | None, options: ModelOptions, name: str) -> None:
    """Raise OptionConflict for a sequence bucket that is longer than the model's sequences."""
    largest = options.sequences.longest
    if limit is not None and largest is not None and largest > limit:
        raise OptionConflict(
            f"--sequence-buckets {largest}: {name} takes sequences of at most {limit} tokens, by its config.json. Use "
            f"buckets up to {limit}"
        )


def _serve_names(model: Any, inputs: Mapping[str, JaxInput], chosen: Sequence[str]) -> None:  # noqa: ANN401
    """Let the model's `forward` return tensors by name, only the `chosen` ones if these are names of its outputs.

    The model stays the module that torch traces, so that its variables keep the names of the checkpoint.
    """
    forward, dtype = model.forward, model.dtype
    fixed = {name: value for name, value in _FORWARD.items() if name in parameters_of(model)}

    @functools.wraps(forward)
    def serve(**tensors: torch.Tensor) -> Any:  # noqa: ANN401
        cast = {name: one.to(dtype) if one.is_floating_point() else one for name, one in tensors.items()}
        returned = forward(**cast, **fixed)
        if not isinstance(returned, Mapping):
            return returned
        outputs = {name: value for name, value in returned.items() if _is_output(value) and name not in _CACHES}
        return {name: outputs[name] for name in chosen or outputs} if set(chosen) <= set(outputs) else outputs

    serve.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]  # torch.export reads it
    model.forward = serve


def _is_output(value: object) -> bool:
    """Return whether the value is a tensor or several, such as hidden states. Caches are objects."""
    return torch.is_tensor(value) or (
        isinstance(value, tuple | list) and all(map(torch.is_tensor, value)) and bool(value)
    )
