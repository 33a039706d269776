"""The parts to lower for each kind of source: one device part for all signatures, or one part for each signature."""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import CannotLower, reason_of
from tpuserve_exporter.graphs.graph_walk import called_by, has_kernel
from tpuserve_exporter.models.jax_function import JaxFunction
from tpuserve_exporter.models.ragged import mark_ragged
from tpuserve_exporter.models.weights_check import named_variables, release_weights
from tpuserve_exporter.programs.device_programs import Bucket, ModelToLower
from tpuserve_exporter.programs.host_part import HostPart, describe_host, split
from tpuserve_exporter.programs.lowering import (
    LoweredGraph,
    count_results,
    export_function,
    export_module,
    lower_graph,
    shape_of,
)
from tpuserve_exporter.programs.weights_file import Weight
from tpuserve_exporter.signatures.served_signature import DevicePart, ServedSignature, describe_specs
from tpuserve_exporter.sources.saved_model.file import read_saved_model
from tpuserve_exporter.terms.signature import Array, Signature
from tpuserve_exporter.terms.texts import first
from tpuserve_formats.manifest.device import DeviceSignature

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tensorflow as tf
    from tensorflow.core.framework.node_def_pb2 import NodeDef


_KERNELS = "XLA_CPU_JIT"
# A compiler takes these as arguments, or TensorFlow removes them before the compilation.
_NO_KERNEL_NEEDED = frozenset({"Placeholder", "VarHandleOp", "_Arg", "_Retval"})
_COMPLAINT = re.compile(r"No registered '(\w+)' OpKernel .*?\{\{node ([^}]+)\}\}")
# Names of nodes contain the layer: `model/decoder/nms/CombinedNonMaxSuppression`.
_MOST_PLACES = 3
_STRINGS = (
    "Move the conversion between strings and numbers to the host part of a signature: --signature NAME=image_bytes, "
    "tf_example, classify or pkg.module:function"
)
# Advice by prefixes of operation names.
_ADVICE = (
    (("DecodeJpeg", "DecodePng", "DecodeImage", "DecodeBmp", "DecodeGif", "DecodeAndCrop", "ExtractJpeg"),
     "Image files are decoded on the host. Remove decoding from the model, and use --signature NAME=image_bytes"),
    (("ParseExample", "ParseSequence", "ParseSingle", "DecodeRaw", "DecodeCSV"),
     "tf.Examples are parsed on the host. Remove parsing from the model, and use --signature NAME=tf_example"),
    (("LookupTable", "HashTable", "MutableHash", "MutableDense", "AnonymousHash", "InitializeTable"),
     "Vocabularies are looked up on the host. Move the lookup to a signature of your own, --signature "
     "NAME=pkg.module:function"),
    (("String", "Static", "Regex", "AsString", "Substr", "Unicode", "EncodeBase64", "DecodeBase64", "ReduceJoin",
      "Wordpiece", "Sentencepiece"),
     _STRINGS),
    (("CombinedNonMaxSuppression", "NonMaxSuppression"),
     "Use tf.image.non_max_suppression_padded with pad_to_max_output_size=True, which can be compiled"),
    (("Sparse",), "Pad sparse tensors and mask the padding. tpuserve_exporter.dense_lookup does this for embeddings"),
    (("Ragged",), "Pad ragged tensors with to_tensor() and a shape, and mask the padding"),
    (("PyFunc", "EagerPyFunc", "Print"), (
        "A device runs no Python and no prints. Remove the operation from the served model"
    )),
    (("BatchFunction",), "The server batches for a device. Export without --batching in-graph"),
)  # fmt: skip


def explain(graph: "tf.types.experimental.ConcreteFunction", error: Exception) -> str:
    """Explain why TensorFlow failed with `error` to lower the graph."""
    found = find_unsupported(graph)
    for operation, node in _COMPLAINT.findall(str(error)):
        if operation not in _NO_KERNEL_NEEDED:
            found.setdefault(operation, [node])
    if not found and "T=DT_STRING" in str(error):
        return f"the model has strings, but a TPU has none. {_STRINGS}"
    if not found:
        return f"cannot lower the model for a TPU: {reason_of(error)[:300]}"
    named = [f"{operation} (in {first(nodes, _MOST_PLACES)})" for operation, nodes in sorted(found.items())]
    advice = dict.fromkeys(_advise(operation) for operation in sorted(found))
    return f"a TPU does not support {', '.join(named)}. {'. '.join(advice)}"


def find_unsupported(graph: "tf.types.experimental.ConcreteFunction") -> dict[str, list[str]]:
    """Find operations that the compiler does not support, each with the names of its nodes in the model."""
    found: dict[str, list[str]] = {}
    for node in _all_nodes(graph):
        if node.op not in _NO_KERNEL_NEEDED and not has_kernel(node.op, _KERNELS):
            found.setdefault(node.op, []).append(node.name)
    return found


def check_strings(signature: Signature) -> None:
    """Raise CannotLower if an input or output has strings."""
    tensors = (("input", signature.inputs), ("output", signature.outputs))
    named = [f"{what} {name!r}" for what, specs in tensors for name, spec in specs.items() if spec.dtype == "string"]
    if named:
        raise CannotLower(f"{signature.name}: {' and '.join(named)} hold(s) strings, but a TPU has none. {_STRINGS}")


def _all_nodes(graph: "tf.types.experimental.ConcreteFunction") -> "Iterator[NodeDef]":
    """Yield the nodes of the graph and of every function that it calls, each once, without the calls themselves."""
    graph_def = graph.graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph_def.library.function}
    called, waiting = set[str](), list(graph_def.node)
    while waiting:
        node = waiting.pop()
        if node.op not in functions:
            yield node
        new = (called_by(node) & functions.keys()) - called
        called |= new
        waiting += [one for name in new for one in functions[name]]


def _advise(operation: str) -> str:
    for prefixes, advice in _ADVICE:
        if operation.startswith(prefixes):
            return advice
    return f"Write the model without {operation}, or move it to a signature of your own (docs/how-to/tpu)"


class GraphWeights:
    """The weights that TensorFlow functions capture: variables, and constants from outside of the functions.

    A weight that several functions capture has one name. Iteration lists the weights that `name_of` has named.
    """

    def __init__(self, trackables: Iterable[Any], variables: "Iterable[tf.Variable]" = ()) -> None:
        """Use the names in `trackables` for their variables. Other `variables` keep their own names."""
        named = list(named_variables(trackables))
        known = {id(variable.handle) for _, variable in named}
        named += [(one.name.removesuffix(":0"), one) for one in variables if id(one.handle) not in known]
        self._variables = {id(variable.handle): (name, variable) for name, variable in named}
        self._names: dict[int, str] = {}
        self._weights: dict[str, Weight] = {}
        # The keys are addresses, so captured objects must stay alive as long as this object.
        self._captured: list[Any] = []

    def name_of(self, captured: Any) -> str:  # noqa: ANN401 - a handle or a tensor
        """Return the weight's name in the file. Raises CannotLower for another resource, such as a table."""
        if id(captured) not in self._names:
            self._names[id(captured)] = self._add(captured)
            self._captured.append(captured)
        return self._names[id(captured)]

    def __iter__(self) -> Iterator[Weight]:
        yield from self._weights.values()

    def _add(self, captured: Any) -> str:  # noqa: ANN401
        import tensorflow as tf

        if id(captured) in self._variables:
            wanted, variable = self._variables[id(captured)]
            name = self._unique(wanted)
            shape, dtype = tuple(variable.shape.as_list()), variable.dtype.base_dtype
            self._weights[name] = Weight(name, _dtype_name(dtype), shape, lambda: np.asarray(variable.numpy()))
            return name
        if captured.dtype in (tf.resource, tf.variant):
            raise CannotLower(
                "the model looks up a table or has another resource that is not a variable, but a TPU has none. "
                "Move the lookup to the host part of a signature, --signature NAME=pkg.module:function"
            )
        name = self._unique("constant")
        shape = tuple(captured.shape.as_list())
        self._weights[name] = Weight(name, _dtype_name(captured.dtype), shape, lambda: np.asarray(captured.numpy()))
        return name

    def _unique(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._weights:
            name, count = f"{wanted}_{count}", count + 1
        return name


def _dtype_name(dtype: "tf.DType") -> str:
    return str(np.dtype(dtype.as_numpy_dtype).name)


class GraphPart:
    """A device part of `graph`, which takes and returns tensors by name. The caller keeps its weights in memory."""

    def __init__(
        self,
        name: str,
        signature: Signature,
        graph: "tf.types.experimental.ConcreteFunction",
        weights: GraphWeights,
    ) -> None:
        self.name = name
        self.signature = signature
        self._graph = graph
        self._weights = weights
        self.weights: tuple[str, ...] = ()

    def lower(self, bucket: Bucket) -> bytes:
        """Return the program for the bucket's shapes. Raises CannotLower with every unsupported operation."""
        check_strings(self.signature)
        lowered = self._lower_graph(bucket)
        self._check_results(lowered)
        names = [self._weights.name_of(one) for one in lowered.captured]
        self.weights = self.weights or tuple(dict.fromkeys(names))
        if len(names) != len(self.weights) or set(names) != set(self.weights):
            raise CannotLower(
                f"{self.signature.name}: the model uses different weights at {bucket.name} than at other sizes"
            )
        inputs = len(self.signature.inputs)
        order = [*range(inputs), *(inputs + self.weights.index(name) for name in names)]
        return export_module(lowered.module, "device", order)

    def _lower_graph(self, bucket: Bucket) -> LoweredGraph:
        import tensorflow as tf

        inputs = self.signature.inputs.items()
        specs = [tf.TensorSpec(bucket.shape(spec), spec.dtype, name=_argument(name)) for name, spec in inputs]

        def run(*tensors: "tf.Tensor") -> "list[tf.Tensor]":
            outputs = self._graph(**dict(zip(self.signature.inputs, tensors, strict=True)))
            return [outputs[name] for name in self.signature.outputs]

        try:
            return lower_graph(run, specs)
        except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
            raise CannotLower(f"{self.signature.name}: {explain(self._graph, error)}") from error

    def _check_results(self, lowered: LoweredGraph) -> None:
        """Raise CannotLower if the module returns new values of variables in addition to its outputs."""
        if count_results(lowered.module) != len(self.signature.outputs):
            raise CannotLower(
                f"{self.signature.name} changes its own variables when it is called (a counter, a state, training "
                "statistics), but a device program only computes outputs. Export the model in inference mode, or "
                "omit --device-programs"
            )


def _argument(name: str) -> str:
    return "".join(one if one.isalnum() and one.isascii() else "_" for one in f"input_{name}")


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
