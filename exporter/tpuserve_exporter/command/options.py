"""ExportOptions from a command line or from Python keywords, with the same names, types and messages."""

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from tpuserve_exporter.command.labelled_options import read_labelled
from tpuserve_exporter.errors import OptionConflict
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
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, SignatureRequest, check_names, scale_images
from tpuserve_exporter.options.tpu import DeviceMesh

# Parameters for screen output and reports. The export does not use them.
REPORTING = ("as_json", "reports", "verbose")


def read_options(arguments: dict[str, Any]) -> ExportOptions:
    """Group the parameters that click parsed. Raises OptionConflict."""
    kind, dtype = arguments.pop("kind"), arguments.pop("compute_dtype")
    signatures = _read_signatures(arguments.pop("signatures"), arguments["signature_name"])
    signatures = scale_images(signatures, arguments.pop("image_scale"))
    sequences = SequenceOptions(arguments.pop("sequence_buckets"), _read_pad_values(arguments.pop("pad_values")))
    if sequences.pad_values and not sequences.buckets:
        raise OptionConflict("--pad-value needs --sequence-buckets")
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
        sequences=sequences,
        compute_dtype=dtype,
        int8=arguments.pop("int8"),
        freeze=arguments.pop("freeze"),
        weights=arguments.pop("weights"),
        weights_decay=arguments.pop("weights_decay"),
        renames=tuple(Rename.parse(text) for text in arguments.pop("renames")),
        allow_nan=arguments.pop("allow_nan"),
        allow_nondeterminism=arguments.pop("allow_nondeterminism"),
        allow_batch_statistics=arguments.pop("allow_batch_statistics"),
        unsafe=arguments.pop("unsafe"),
        allowed_ops=arguments.pop("allowed_ops"),
        imports=arguments.pop("imports"),
        tag_set=tuple(tag.strip() for tag in (arguments.pop("tag_set") or "").split(",") if tag.strip()),
    )
    examples = tuple(Example.parse(text) for text in arguments.pop("examples"))
    labelled = read_labelled(arguments)
    batching = _read_batching(arguments)
    tpu = _read_tpu(arguments)
    return ExportOptions(
        model=model, signatures=signatures, examples=examples, labelled=labelled, batching=batching, tpu=tpu,
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


# Options of the command only: its output and its help.
_NOT_KEYWORDS = ("--json", "--help", "--report", "--verbose")


def parse_keywords(command: click.Command, arguments: Sequence[str], keywords: Mapping[str, object]) -> "ExportOptions":
    """Return the options from keywords `given` and positional `arguments`.

    Raises:
        OptionConflict: if a value is invalid.
        TypeError: if a name is not an option.
    """
    known = _options(command)
    words = [word for name, value in keywords.items() for word in _words(_find(name, known), value)]
    try:
        context = command.make_context("export", [*words, "--", *arguments])
    except click.ClickException as error:
        raise OptionConflict(error.format_message()) from error
    parameters = {name: value for name, value in context.params.items() if name not in REPORTING}
    return read_options(parameters)


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options by keyword: `--batch-sizes` as `batch_sizes`, `--from` as `from`."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    named = {name: one for one in options for name in one.opts if name.startswith("--") and name not in _NOT_KEYWORDS}
    return {name[2:].replace("-", "_"): one for name, one in named.items()}


def _find(name: str, known: Mapping[str, click.Option]) -> click.Option:
    found = known.get(name.rstrip("_"))
    if found is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else f". Options: {', '.join(sorted(known))}"
        raise TypeError(f"export() has no option {name!r}{hint}")
    return found


def _words(option: click.Option, value: object) -> Iterator[str]:
    """Yield the option as command-line words, or nothing for None and for a flag that is off."""
    name = option.opts[-1]
    if option.is_flag:
        yield from [name] if value else []
    elif option.multiple:
        yield from (f"{name}={item}" for item in _items(value))
    elif value is not None:
        yield f"{name}={_text(value)}"


def _items(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from (f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in value.items())
    elif isinstance(value, Iterable) and not isinstance(value, str):
        yield from map(str, value)
    elif value is not None:
        yield str(value)


def _text(value: object) -> str:
    """Return `1,8` for `(1, 8)`, and `module:name` for a function."""
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__name__)}"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value)
