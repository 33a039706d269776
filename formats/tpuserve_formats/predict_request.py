"""Hand-written encoder of a PredictRequest's inputs: much faster than filling messages, and without lists."""

from collections.abc import Mapping
from functools import lru_cache

from tpuserve_formats.dtypes import Array
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_formats.varint import varint


def encode_inputs(inputs: Mapping[str, Array]) -> bytes:
    """Encode the field `inputs` of a serialized PredictRequest, with tensors as tensor_content, in the order of
    `inputs`.

    Concatenated messages parse as one message, so the rest of the request can precede or follow these bytes.

    Raises:
        FormatError: TensorProto does not support an array's dtype.
    """
    parts: list[bytes] = []
    for name, array in inputs.items():
        tensor = encode_tensor(array, as_content=True)
        key = map_key(name)
        length = varint(len(tensor))
        # inputs = 2: {key = 1, value = 2}
        parts += (b"\x12", varint(len(key) + 1 + len(length) + len(tensor)), key, b"\x12", length, tensor)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def map_key(name: str) -> bytes:
    """Encode field `key` = 1 of a map entry."""
    encoded = name.encode()
    return b"\x0a" + varint(len(encoded)) + encoded
