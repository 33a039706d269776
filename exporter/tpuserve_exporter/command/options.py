"""ExportOptions from the parameters that click parsed."""

import json
import math
from typing import Any

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.device_mesh import DeviceMesh
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.options.export_options import (
    ExportOptions,
    InGraphBatching,
    InputNaming,
    ModelOptions,
    PadValue,
    Rename,
    SequenceOptions,
    TensorNaming,
    TpuOptions,
)
from tpuserve_exporter.options.signature_request import (
    DEFAULT_SIGNATURE,
    SignatureRequest,
    check_names,
    scale_images,
)

# Parameters for screen output and reports. The export does not use them.
REPORTING = ("as_json", "reports", "verbose")


def read_options(arguments: dict[str, Any]) -> ExportOptions:
    """Group the parameters that click parsed. Raises OptionConflict."""
    kind, dtype = arguments.pop("kind"), arguments.pop("compute_dtype")
    signatures = _read_signatures(arguments.pop("signatures"), arguments["signature_name"])
    signatures = scale_images(signatures, arguments.pop("image_scale"))
    model = ModelOptions(
        builder=arguments.pop("builder"),
        builder_args=_read_model_args(arguments.pop("model_args")),
        allow_missing=arguments.pop("allow_missing"),
        allow_unused=arguments.pop("allow_unused"),
        signature_name=arguments.pop("signature_name"),
        inputs=tuple(InputNaming.parse(text) for text in arguments.pop("inputs")),
        outputs=arguments.pop("outputs"),
        input_tensors=tuple(TensorNaming.parse(text) for text in arguments.pop("input_tensors")),
        output_tensors=tuple(TensorNaming.parse(text) for text in arguments.pop("output_tensors")),
        batch_sizes=arguments.pop("batch_sizes"),
        compute_dtype=dtype,
        int8=arguments.pop("int8"),
        freeze=arguments.pop("freeze"),
        weights=arguments.pop("weights"),
        renames=tuple(Rename.parse(text) for text in arguments.pop("renames")),
        allow_nan=arguments.pop("allow_nan"),
        allow_nondeterminism=arguments.pop("allow_nondeterminism"),
        allow_batch_statistics=arguments.pop("allow_batch_statistics"),
        unsafe=arguments.pop("unsafe"),
        allowed_ops=arguments.pop("allowed_ops"),
    )
    sequences = SequenceOptions(arguments.pop("sequence_buckets"), _read_pad_values(arguments.pop("pad_values")))
    if sequences.pad_values and not sequences.buckets:
        raise OptionConflict("--pad-value needs --sequence-buckets")
    examples = tuple(Example.parse(text) for text in arguments.pop("examples"))
    batching = _read_batching(arguments)
    tpu = _read_tpu(arguments)
    return ExportOptions(
        model=model, sequences=sequences, signatures=signatures, examples=examples, batching=batching, tpu=tpu,
        kind=None if kind == "auto" else kind, **arguments,
    )  # fmt: skip


def _read_batching(arguments: dict[str, Any]) -> InGraphBatching | None:
    in_graph = arguments.pop("batching") == "in-graph"
    names = ("threads", "timeout_us", "queue")
    options = {name: value for name in names if (value := arguments.pop(f"batch_{name}")) is not None}
    if options and not in_graph:
        raise OptionConflict(f"--batch-{min(options).replace('_', '-')} needs --batching in-graph")
    return InGraphBatching(**options) if in_graph else None


def _read_tpu(arguments: dict[str, Any]) -> TpuOptions:
    """Read the options of TPUs. --tpu and --tpu-numerics imply device programs."""
    topologies, mesh, rules = arguments.pop("topologies"), arguments.pop("mesh"), arguments.pop("rules")
    strict, numerics = arguments.pop("tpu_strict"), arguments.pop("tpu_numerics")
    for option, value in (("--mesh", mesh), ("--tpu-strict", strict)):
        if value and not topologies:
            raise OptionConflict(f"{option} needs --tpu")
    for topology in topologies if mesh else ():
        mesh.check(topology)
    arguments["device_programs"] = arguments["device_programs"] or bool(topologies) or numerics
    if rules and not arguments["device_programs"]:
        raise OptionConflict("--shard needs device programs. Add --device-programs or --tpu")
    return TpuOptions(topologies, mesh or DeviceMesh(), rules, strict, numerics)


def _read_signatures(texts: tuple[str, ...], signature_name: str) -> tuple[SignatureRequest, ...]:
    signatures = tuple(SignatureRequest.parse(text) for text in texts)
    if signatures and signature_name != DEFAULT_SIGNATURE:
        raise OptionConflict("--signature already names each signature. Omit --signature-name")
    check_names(signatures)
    return signatures


def _read_model_args(pairs: tuple[str, ...]) -> dict[str, object]:
    """Read `units=64` as 64, and `activation=relu` as "relu"."""
    read: dict[str, object] = {}
    for pair in pairs:
        name, value = _read_pair("--model-arg", pair)
        if not name.isidentifier():
            raise OptionConflict(f"--model-arg {pair!r} is not of the form NAME=VALUE")
        read[name] = value
    return read


def _read_pad_values(pairs: tuple[str, ...]) -> dict[str, PadValue]:
    """Read `ids=1` as 1, and `words=[PAD]` as "[PAD]"."""
    read: dict[str, PadValue] = {}
    for pair in pairs:
        name, value = _read_pair("--pad-value", pair)
        if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
            raise OptionConflict(f"--pad-value {pair!r}: the value is neither a number nor text")
        read[name] = value
    return read


def _read_pair(option: str, pair: str) -> tuple[str, object]:
    """Read NAME=VALUE. The value is JSON if it is valid JSON, else text."""
    name, equals, text = pair.partition("=")
    if not name or not equals:
        raise OptionConflict(f"{option} {pair!r} is not of the form NAME=VALUE")
    try:
        return name, json.loads(text)
    except (ValueError, RecursionError):
        return name, text
