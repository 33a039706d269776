"""Checks a version before the trial: the tags, the dtypes and the operations that OpenVINO runs as TensorFlow does."""

from typing import Final

import numpy as np

from tpuserve_formats.safety.graph import read_graphs
from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import DEFAULT_SIGNATURE_NAME, Signature
from tpuserve_server.executors.openvino.operations import find_different
from tpuserve_server.executors.tensorflow.options import DEFAULT_TAGS

# OpenVINO computes 64-bit numbers with 32 bits.
_INPUT_DTYPES: Final = frozenset(map(np.dtype, ("float32", "float16", "uint8", "bool")))
_OUTPUT_DTYPES: Final = _INPUT_DTYPES | {np.dtype(np.int32)}


def suitable_signature(loaded: Servable, graph: memoryview, tags: tuple[str, ...]) -> Signature:
    """Return `serving_default` of a version that TensorFlow has loaded, if OpenVINO may run its `graph`. Blocks.

    Raises:
        FailedPrecondition: OpenVINO may not run it. The message has the reason.
    """
    signature = loaded.signatures.get(DEFAULT_SIGNATURE_NAME)
    if tags != DEFAULT_TAGS:
        raise FailedPrecondition("it reads only the graph with the tag 'serve'")
    if signature is None:
        raise FailedPrecondition(f"the version has no signature '{DEFAULT_SIGNATURE_NAME}'")
    if loaded.unrepeatable:
        raise FailedPrecondition(loaded.unrepeatable)
    _check_tensors(signature)
    _check_operations(signature, graph)
    return signature


def _check_tensors(signature: Signature) -> None:
    if signature.ragged_inputs or signature.ragged_outputs or not signature.inputs:
        raise FailedPrecondition(f"signature '{signature.name}' has ragged tensors or no inputs")
    for name, spec in signature.inputs.items():
        if spec.dtype not in _INPUT_DTYPES:
            raise FailedPrecondition(f"input '{name}' is {_dtype(spec.dtype)}")
        if spec.shape is None or None in spec.shape[1:]:
            raise FailedPrecondition(f"input '{name}' has a free dimension after the first")
    for name, spec in signature.outputs.items():
        if spec.dtype not in _OUTPUT_DTYPES:
            raise FailedPrecondition(f"output '{name}' is {_dtype(spec.dtype)}")


def _check_operations(signature: Signature, graph: memoryview) -> None:
    graphs = list(read_graphs(graph))
    if len(graphs) != 1:
        raise FailedPrecondition(f"the SavedModel has {len(graphs)} graphs")
    if operation := find_different(graphs[0], signature):
        raise FailedPrecondition(f"the operation {operation} is not among those that it runs as TensorFlow does")


def _dtype(dtype: "np.dtype[np.generic]") -> str:
    return "string" if dtype.hasobject else dtype.name
