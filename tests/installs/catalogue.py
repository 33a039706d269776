"""Installations: each distribution, and each of its extras."""

from collections.abc import Iterator
from dataclasses import dataclass

_JAX = "import tpuserve_server.executors.pjrt.executor"
_LIBRARIES = "from tpuserve_formats.operation_libraries import FORESTS, TEXT; "
_LOAD = f"{_LIBRARIES}from tpuserve_server.executors.tensorflow.start import load_library; load_library"
_LOAD_TO_EXPORT = f"{_LIBRARIES}from tpuserve_exporter.graphs.operation_libraries import load_libraries; load_libraries"
_START_TENSORFLOW = "from tpuserve_server.executors.tensorflow.start import start_tensorflow; start_tensorflow()"


@dataclass(frozen=True, slots=True)
class Installation:
    """A distribution, or one of its extras.

    `adds` describes it for the page. `statement` imports a module of it. Tests only plan a `heavy` installation, which
    takes minutes or gigabytes.
    """

    distribution: str
    adds: str
    statement: str
    extra: str = ""
    heavy: bool = False

    @property
    def requirement(self) -> str:
        """Requirement that pip installs."""
        return f"{self.distribution}[{self.extra}]" if self.extra else self.distribution


def _of(distribution: str, *rows: tuple[str, str, str], heavy: tuple[str, ...] = ()) -> Iterator[Installation]:
    """Yield the distribution and its extras from rows of an extra, what it adds, and a statement."""
    for extra, adds, statement in rows:
        yield Installation(distribution, adds, statement, extra, extra in heavy)


INSTALLATIONS = (
    *_of(
        "tpuserve",
        (
            "",
            "server with TensorFlow, exporter, client, load tests",
            "import tpuserve_server.startup.app, tpuserve_exporter",
        ),
    ),
    *_of(
        "tpuserve-client",
        ("", "Python client, `tpuserve predict`, `tpuserve status`", "import tpuserve_client"),
        ("image", "image files as inputs of `tpuserve predict`", "import PIL.Image"),
    ),
    *_of(
        "tpuserve-server",
        ("", "gRPC, REST, batching, console; no runtime for versions", "import tpuserve_server.startup.app"),
        ("tensorflow", "SavedModels", _START_TENSORFLOW),
        ("text", "operations of TensorFlow Text in SavedModels", f"{_LOAD}(TEXT)"),
        ("forests", "decision forests of YDF in SavedModels", f"{_LOAD}(FORESTS)"),
        ("pjrt", "device programs on the CPU", _JAX),
        ("tpu", "device programs on a TPU", _JAX),
        ("cuda", "device programs on a GPU", _JAX),
        ("tflite", "TensorFlow Lite models", "import tpuserve_server.executors.tflite.model"),
        ("openvino", "trials of OpenVINO for SavedModels", "import openvino"),
        ("gcs", "base paths of `gs://`", "import gcsfs"),
        ("s3", "base paths of `s3://`", "import s3fs"),
        ("jwt", "tokens of clients", "import jwt"),
        ("ray", "replicas in Ray Serve", "import ray.serve"),
        heavy=("tpu", "cuda"),
    ),
    *_of(
        "tpuserve-exporter",
        ("", "checkpoints of TensorFlow and Keras", "import tpuserve_exporter"),
        ("jax", "checkpoints of JAX (Orbax, Flax, T5X)", "import orbax.checkpoint"),
        ("torch", "PyTorch files; the size is that of PyTorch's CPU build", "import torch"),
        ("huggingface", "Hugging Face directories, in addition to PyTorch files", "import transformers"),
        ("tpu", "device programs, and the check for a TPU", "import jax"),
        ("text", "operations of TensorFlow Text in SavedModels", f"{_LOAD_TO_EXPORT}(TEXT.operations)"),
        ("forests", "decision forests of YDF in SavedModels", f"{_LOAD_TO_EXPORT}(FORESTS.operations)"),
        ("tflite", "checks of TensorFlow Lite models", "import ai_edge_litert.interpreter"),
        ("gcs", "publishing to `gs://`", "import gcsfs"),
        ("s3", "publishing to `s3://`", "import s3fs"),
        heavy=("torch", "huggingface", "tpu"),
    ),
    *_of(
        "tpuserve-loadtests",
        ("", "`tpuserve loadtest`, `tpuserve rollout`", "import tpuserve_loadtests.cli"),
        ("otlp", "`--otlp`", "import opentelemetry.exporter.otlp.proto.http.metric_exporter"),
    ),
    *_of(
        "tpuserve-formats",
        ("", "wire types and file formats; pip installs it with the others", "import tpuserve_formats.tensor_proto"),
        ("manifest", "models of the manifest", "import tpuserve_formats.manifest.version"),
        ("records", "TFRecord files", "import tpuserve_formats.tf_record"),
        ("signing", "signatures of versions", "import tpuserve_formats.signing.keys"),
    ),
    *_of(
        "tpuserve-command",
        ("", "`tpuserve` command; pip installs it with the others", "import tpuserve_command.group"),
    ),
)
