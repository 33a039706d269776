"""The parts to lower for each kind of source: one device part for all signatures, or one part for each signature."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.errors import CannotLower, reason_of
from tpuserve_exporter.models.jax_function import JaxFunction
from tpuserve_exporter.models.ragged_signatures import mark_ragged
from tpuserve_exporter.models.weights_check import named_variables
from tpuserve_exporter.models.weights_release import release_weights
from tpuserve_exporter.programs.device_programs import ModelToLower
from tpuserve_exporter.programs.graph_part import GraphPart
from tpuserve_exporter.programs.host_model import describe_host
from tpuserve_exporter.programs.host_part import HostPart, split
from tpuserve_exporter.programs.jax_part import JaxPart
from tpuserve_exporter.programs.weights import GraphWeights
from tpuserve_exporter.programs.weights_file import Weight
from tpuserve_exporter.signature import Array, Signature
from tpuserve_exporter.signatures.device_part import DevicePart, describe_specs
from tpuserve_exporter.signatures.served_signature import ServedSignature
from tpuserve_exporter.sources.saved_model.file import read_saved_model
from tpuserve_formats.manifest.device import DeviceSignature

if TYPE_CHECKING:
    import tensorflow as tf

_PART = "device"


def lower_part(device: DevicePart, jax: JaxFunction | None, served: Mapping[str, ServedSignature]) -> ModelToLower:
    """Return the one device part of a model. JAX lowers it if the model is a JAX function."""
    hosts, left_out = _split_all(device, served)
    signature = replace(device.signature, name="the model")  # the name in error messages
    signatures = {
        name: DeviceSignature(
            method_name=served[name].method_name,
            part=_PART,
            inputs=dict(one.inputs),
            outputs=dict(one.outputs),
            host=describe_host(name, one),
        )
        for name, one in hosts.items()
    }
    if jax is not None:
        part = JaxPart(_PART, signature, jax)
        return ModelToLower([part], signatures, _jax_weights(part, device), hosts, left_out)
    weights = GraphWeights(device.trackables, device.graph.variables)
    graph = GraphPart(_PART, signature, device.graph, weights)
    return ModelToLower([graph], signatures, weights, hosts, left_out)


def _split_all(
    device: DevicePart, served: Mapping[str, ServedSignature]
) -> tuple[dict[str, HostPart], tuple[str, ...]]:
    """Return host parts by signature, and reasons for signatures without one. Raises CannotLower if all lack one."""
    hosts, left_out = dict[str, HostPart](), list[str]()
    for name, signature in served.items():
        try:
            hosts[name] = split(signature, device)
        except CannotLower as error:
            left_out.append(str(error))
    if not hosts:
        raise CannotLower("; ".join(left_out))
    return hosts, tuple(left_out)


def _straight(part: str, signature: Signature) -> DeviceSignature:
    """Describe a signature with the same tensors as its part."""
    return DeviceSignature(
        part=part, inputs={name: name for name in signature.inputs}, outputs={name: name for name in signature.outputs}
    )


def _jax_weights(part: JaxPart, device: DevicePart) -> Iterator[Weight]:
    """Yield the function's parameters from the served model's variables, which have the same names."""
    variables = dict(named_variables(device.trackables))
    for name, dtype in part.weight_dtypes().items():
        variable = variables[name]
        read = functools.partial(_read_as, variable, dtype)
        yield Weight(name, dtype, tuple(variable.shape.as_list()), read)


def _read_as(variable: "tf.Variable", dtype: str) -> Array:
    return np.asarray(variable.numpy()).astype(dtype, copy=False)


@contextlib.contextmanager
def lower_saved_model(version: Path) -> Iterator[ModelToLower]:
    """Return each of a SavedModel's signatures without strings as a part. The weights stay loaded while the body runs.

    Raises CannotLower if there is no such signature, or if Python cannot load the SavedModel.
    """
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(str(version))
    except Exception as error:  # TensorFlow raises many kinds of errors here
        raise CannotLower(f"cannot lower a SavedModel that does not load in Python: {reason_of(error)}") from error
    signatures = {name: _read_signature(name, graph) for name, graph in loaded.signatures.items()}
    signatures = mark_ragged(signatures, read_saved_model(version).meta_graphs[0])
    chosen = {name: one for name, one in signatures.items() if not _has_strings(one)}
    if not chosen:
        raise CannotLower(
            f"every signature has strings ({'; '.join(map(str, signatures.values()))}), but a TPU has none. Export "
            "the checkpoint of this SavedModel instead, with the strings in the host part of a signature: "
            "--signature NAME=image_bytes, tf_example, classify or pkg.module:function"
        )
    weights = GraphWeights([loaded])
    parts = [GraphPart(name, one, loaded.signatures[name], weights) for name, one in chosen.items()]
    straight = {name: _straight(name, one) for name, one in chosen.items()}
    strings = sorted(signatures.keys() - chosen.keys())
    left_out = tuple(f"{name} has strings, and a SavedModel does not show where its host part ends" for name in strings)
    yield ModelToLower(parts, straight, weights, {}, left_out)
    release_weights([loaded])


def _read_signature(name: str, graph: "tf.types.experimental.ConcreteFunction") -> Signature:
    _, inputs = graph.structured_input_signature
    return Signature(name, describe_specs(inputs), describe_specs(graph.structured_outputs))


def _has_strings(signature: Signature) -> bool:
    return any(spec.dtype == "string" for spec in (*signature.inputs.values(), *signature.outputs.values()))
