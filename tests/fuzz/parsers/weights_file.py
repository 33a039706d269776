"""Weights in the safetensors format. The second opinion is the format's own library, where it accepts the file."""

import tempfile
from pathlib import Path

import safetensors
import safetensors.numpy

from tests.fuzz.arrays import expect_same
from tests.fuzz.target import Target
from tpuserve_server.core.terms.errors import DataLoss
from tpuserve_server.executors.pjrt.executor import map_weights

# The dtypes that the library returns to numpy.
_COMMON = frozenset("biufc")


def run(data: bytes) -> bool:
    """Map a file. An input that begins with J is the JSON header, a line break, and the data."""
    content = data
    if data[:1] == b"J":
        header, _, rest = data[1:].partition(b"\n")
        content = len(header).to_bytes(8, "little") + header + rest
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            found = map_weights(Path(file.name))
        except DataLoss:
            return False
        arrays = {name: array.copy() for name, array in found.items() if array.dtype.kind in _COMMON}
    try:
        wanted = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        # It requires data without gaps, and lacks some dtypes.
        return True
    for name, array in arrays.items():
        expect_same(name, array, wanted[name])
    return True


TARGET = Target(
    run,
    max_bytes=1024,
    words=(b'"dtype":"F32"', b'"shape":[', b'"data_offsets":[0,4]', b'"__metadata__":{}', b'"BF16"', b"[[[[", b"1e3"),
)
