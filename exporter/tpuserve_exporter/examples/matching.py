"""Converts the content of an example to the inputs of a signature."""

from collections.abc import Mapping

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, IMAGE_KIND, SignatureRequest
from tpuserve_exporter.samples.samples import fit_input
from tpuserve_exporter.signature import Array, Signature, Tensors, TensorSpec


def match_signature(
    example: Example, signatures: Mapping[str, Signature], requests: tuple[SignatureRequest, ...]
) -> tuple[Signature, Tensors]:
    """Return the first signature that takes the example, and its inputs. `serving_default` comes first.

    Raises SamplesUnfit with the inputs of each signature if no signature takes it.
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
    hint = ". Add --signature photo=image_bytes" if example.kind == "image" else ""
    raise SamplesUnfit(f"{example}: no signature takes this input ({'; '.join(reasons)}){hint}")


def _inputs(example: Example, signature: Signature, kind: str | None) -> Tensors:
    """Return the example as inputs of `signature`. `kind` is None for the signatures of a copied SavedModel."""
    if isinstance(example.content, bytes):
        takes = kind is None or ":" in kind or (kind == IMAGE_KIND and example.kind == "image")
        name = _only_string(signature) if takes else None
        if name is None:
            raise SamplesUnfit(f"{signature.name} takes no {example.kind}")
        return {name: _as_row(np.array(example.content, object), signature.inputs[name])}
    named = _name_arrays(example.content, signature)
    if unknown := named.keys() - signature.inputs.keys():
        raise SamplesUnfit(f"{signature.name} has no input {min(unknown)!r}")
    if missing := signature.inputs.keys() - named.keys():
        raise SamplesUnfit(f"{signature.name} also needs the input {min(missing)!r}")
    return {name: fit_input(name, spec, _as_row(named[name], spec)) for name, spec in signature.inputs.items()}


def _only_string(signature: Signature) -> str | None:
    found = [name for name, spec in signature.inputs.items() if spec.dtype == "string" and spec.shape in ((None,), ())]
    return found[0] if len(found) == len(signature.inputs) == 1 else None


def _name_arrays(arrays: Mapping[str, Array], signature: Signature) -> Mapping[str, Array]:
    """Give an array without a name the name of the only input."""
    if arrays.keys() != {""}:
        return arrays
    if len(signature.inputs) != 1:
        raise SamplesUnfit(
            f"{signature.name} has several inputs. Name the arrays: {', '.join(sorted(signature.inputs))}"
        )
    return {next(iter(signature.inputs)): arrays[""]}


def _as_row(value: Array, spec: TensorSpec) -> Array:
    """Add the batch dimension if the input has one and the value lacks it."""
    lacks = spec.shape is not None and spec.has_batch_dimension and value.ndim == len(spec.shape) - 1
    return value[np.newaxis] if lacks else value
