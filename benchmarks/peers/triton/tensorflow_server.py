"""NVIDIA Triton's own server with the backend of tensorflow_backend.c: any SavedModel with one value a row, behind the
dynamic batcher. Arguments: VERSION_DIR NAME HTTP_PORT GRPC_PORT.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from c_server import program

BACKEND = "tensorflow_c"
MAX_BATCH = 32
# TensorFlow's number of a dtype → its name and number in Triton. All have four bytes.
DTYPES = {1: ("TYPE_FP32", 11), 3: ("TYPE_INT32", 8)}
CONFIG = """
backend: "{backend}"
max_batch_size: {max_batch}
{inputs}
output [{{ name: "{output}", data_type: {dtype}, dims: [1] }}]
instance_group [{{ kind: KIND_CPU, count: 1 }}]
dynamic_batching {{}}
"""


def main(directory: str, name: str, http_port: str, grpc_port: str) -> None:
    # Below TMPDIR, which the benchmark deletes: this process ends as Triton.
    folder = Path(tempfile.mkdtemp())
    model = folder / "models" / name
    version = model / "1"
    version.mkdir(parents=True)
    for entry in Path(directory).iterdir():
        (version / entry.name).symlink_to(entry.resolve())
    signature = read_signature(Path(directory))
    (model / "config.pbtxt").write_text(configuration(signature))
    (version / "tensors.txt").write_text(tensor_lines(signature))
    backend = folder / "backends" / BACKEND
    backend.mkdir(parents=True)
    (backend / f"libtriton_{BACKEND}.so").symlink_to(Path(sys.prefix) / "tensorflow_backend.so")
    command = [
        *(program(), f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}"),
        *("--http-address=127.0.0.1", f"--http-port={http_port}"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}", "--allow-metrics=false"),
    ]
    os.execve(command[0], command, {**os.environ, "TENSORFLOW_LIBRARY": str(library())})


def read_signature(version: Path) -> Any:  # noqa: ANN401 - a message of TensorFlow, which is untyped
    """Return the SignatureDef `serving_default`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    return saved.meta_graphs[0].signature_def["serving_default"]


def configuration(signature: Any) -> str:  # noqa: ANN401 - a message of TensorFlow
    """Return Triton's configuration of the model."""
    inputs = "\n".join(
        f'input [{{ name: "{name}", data_type: {DTYPES[info.dtype][0]}, dims: [{_width(info)}] }}]'
        for name, info in signature.inputs.items()
    )
    ((output, info),) = signature.outputs.items()
    dtype = DTYPES[info.dtype][0]
    return CONFIG.format(backend=BACKEND, max_batch=MAX_BATCH, inputs=inputs, output=output, dtype=dtype)


def tensor_lines(signature: Any) -> str:  # noqa: ANN401 - a message of TensorFlow
    """Return the lines of tensors.txt."""
    tensors = [("input", *one) for one in signature.inputs.items()]
    tensors += [("output", *one) for one in signature.outputs.items()]
    return "".join(
        f"{kind} {name} {info.name.partition(':')[0]} {info.dtype} {DTYPES[info.dtype][1]} {4 * _width(info)}\n"
        for kind, name, info in tensors
    )


def library() -> Path:
    """Return the path of TensorFlow's C library."""
    package = importlib.util.find_spec("tensorflow")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name("libtensorflow_cc.so.2")


def _width(info: Any) -> int:  # noqa: ANN401 - a message of TensorFlow
    """Return the values of a row."""
    sizes = [dim.size for dim in info.tensor_shape.dim[1:]]
    return int(sizes[0]) if sizes else 1


if __name__ == "__main__":
    main(*sys.argv[1:])
