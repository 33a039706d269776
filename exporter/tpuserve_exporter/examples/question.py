"""From an example's content to the inputs of the signature that takes it."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.example import Example, read_arrays
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, IMAGE_KIND, SignatureRequest
from tpuserve_exporter.samples.samples import fit_input
from tpuserve_exporter.signature import Array, Signature, Tensors, TensorSpec


def ask_with(
    example: Example, signatures: Mapping[str, Signature], requests: tuple[SignatureRequest, ...]
) -> tuple[Signature, Tensors]:
    """The signature that takes the example, and its inputs: one row. `serving_default` comes first.

    Raises SamplesUnfit, naming what each signature takes, where none does.
    """
    kinds = {one.name: one.kind for one in requests}
    if requests:
        kinds.setdefault(DEFAULT_SIGNATURE, requests[0].kind)
    reasons = list[str]()
    for signature in sorted(signatures.values(), key=lambda one: one.name != DEFAULT_SIGNATURE):
        try:
            return signature, _inputs(example, signature, kinds.get(signature.name))
        except SamplesUnfit as error:
            reasons.append(str(error))
    hint = ": add --signature photo=image_bytes" if example.kind == "image" else ""
    raise SamplesUnfit(f"{example}: no signature takes it{hint} ({'; '.join(reasons)})")


def _inputs(example: Example, signature: Signature, kind: str | None) -> Tensors:
    """`kind` is None for the signatures that a SavedModel came with."""
    if example.kind in ("image", "text"):
        takes = kind is None or ":" in kind or (kind == IMAGE_KIND and example.kind == "image")
        name = _only_string(signature) if takes else None
        if name is None:
            raise SamplesUnfit(f"{signature.name} takes no {example.kind}")
        content = example.content if example.kind == "image" else example.content.decode().rstrip("\r\n").encode()
        return {name: _as_row(np.array(content, object), signature.inputs[name])}
    named = _named(example, signature)
    if unknown := named.keys() - signature.inputs.keys():
        raise SamplesUnfit(f"{signature.name} has no input {min(unknown)!r}")
    if missing := signature.inputs.keys() - named.keys():
        raise SamplesUnfit(f"{signature.name} needs the input {min(missing)!r} too")
    return {name: fit_input(name, spec, _as_row(named[name], spec)) for name, spec in signature.inputs.items()}


def _only_string(signature: Signature) -> str | None:
    found = [name for name, spec in signature.inputs.items() if spec.dtype == "string" and spec.shape in ((None,), ())]
    return found[0] if len(found) == len(signature.inputs) == 1 else None


def _named(example: Example, signature: Signature) -> Mapping[str, Array]:
    """Arrays by input; those without a name are for the only input."""
    if example.kind == "json":
        document = _read_json(example)
        is_named = isinstance(document, dict) and document.keys() != {"b64"}
        named = document if is_named else {"": document}
        arrays = {name: _as_array(example, value) for name, value in named.items()}
    else:
        arrays = read_arrays(example.name, example.content)
    if arrays.keys() != {""}:
        return arrays
    if len(signature.inputs) != 1:
        raise SamplesUnfit(f"{signature.name} has the inputs {', '.join(sorted(signature.inputs))}: name them")
    return {next(iter(signature.inputs)): arrays[""]}


def _read_json(example: Example) -> Any:  # noqa: ANN401 - whatever JSON is
    try:
        return json.loads(example.content)
    except ValueError as error:
        raise SamplesUnfit(f"{example} is not JSON: {error}") from error


def _as_array(example: Example, value: object) -> Array:
    """Strings as bytes, those of {"b64": …} too."""
    try:
        decoded = next(_decoded([value]))
        text = isinstance(decoded, bytes) or (isinstance(decoded, list) and _has_bytes(decoded))
        return np.array(decoded, object) if text else np.array(decoded)
    except (ValueError, TypeError, binascii.Error) as error:
        raise SamplesUnfit(f"{example} is no array: {error}") from error


def _decoded(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield list(_decoded(value))
        elif isinstance(value, dict):
            yield base64.b64decode(value["b64"], validate=True) if value.keys() == {"b64"} else value
        else:
            yield value.encode() if isinstance(value, str) else value


def _has_bytes(values: list[Any]) -> bool:
    return any(isinstance(one, bytes) or (isinstance(one, list) and _has_bytes(one)) for one in values)


def _as_row(value: Array, spec: TensorSpec) -> Array:
    """With a dimension for its row, where the input has one and the value lacks it."""
    lacks = spec.shape is not None and spec.has_batch_dimension and value.ndim == len(spec.shape) - 1
    return value[np.newaxis] if lacks else value
