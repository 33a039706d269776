"""NVIDIA Triton's own server with the backend of mlp_backend.c, behind the dynamic batcher. Arguments: MODEL_DIR
HTTP_PORT GRPC_PORT.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import saved_model

BACKEND = "mlp"
# `dynamic_batching {}` runs pending requests as soon as the model is free: Triton's default.
CONFIG = f"""
backend: "{BACKEND}"
max_batch_size: {saved_model.MAX_BATCH}
input [{{ name: "{saved_model.INPUT}", data_type: TYPE_FP32, dims: [{saved_model.FEATURES}] }}]
output [{{ name: "{saved_model.OUTPUT}", data_type: TYPE_FP32, dims: [{saved_model.CLASSES}] }}]
instance_group [{{ kind: KIND_CPU, count: 1 }}]
dynamic_batching {{}}
"""


def main(directory: str, http_port: str, grpc_port: str) -> None:
    # Below TMPDIR, which the benchmark deletes: this process ends as Triton.
    folder = Path(tempfile.mkdtemp())
    version = folder / "models" / saved_model.NAME / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "weights.bin").write_bytes(b"".join(layer.tobytes() for layer in saved_model.weights(directory)))
    backend = folder / "backends" / BACKEND
    backend.mkdir(parents=True)
    (backend / f"libtriton_{BACKEND}.so").symlink_to(Path(sys.prefix) / "mlp_backend.so")
    command = [
        *(program(), f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}"),
        *("--http-address=127.0.0.1", f"--http-port={http_port}"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}", "--allow-metrics=false"),
    ]
    os.execv(command[0], command)


def program() -> str:
    """Return the path of tritonserver, which is part of PyTriton's wheel."""
    package = importlib.util.find_spec("pytriton")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / "tritonserver" / "bin" / "tritonserver")


if __name__ == "__main__":
    main(*sys.argv[1:])
