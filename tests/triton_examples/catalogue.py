"""Triton's Python examples: how to start each, and the reason where the server cannot serve it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Protocol: TypeAlias = Literal["http", "grpc"]

# Models of encoded images and of pixels, and the file that the examples send to them. Each run writes the file.
IMAGE_MODEL, PIXEL_MODEL, IMAGE = "image_labels", "pixel_labels", "image.png"

_NO_SEQUENCES = "needs sequence batching, which the server refuses by name"
_NO_DECOUPLED = "needs a decoupled model, with several responses to a request"
_NO_GPU = "needs CUDA shared memory"
_NO_ATTRDICT = "needs the package attrdict, which is no longer maintained"
_FIXED_PORTS = "connects to the fixed ports 8000 and 8001"


@dataclass(frozen=True, slots=True)
class Example:
    """A program of Triton's client repository, in src/python/examples.

    `passes` is in the output of a successful run; the exit status alone is not enough. `models` is the number of models
    that the program expects in the repository, or 0 for any number. `reason` states why the server cannot serve it, and
    `failure` is a part of the output then. An example with a reason and without a failure does not run.
    """

    file: str
    protocol: Protocol
    passes: str = ""
    arguments: tuple[str, ...] = ()
    models: int = 0
    reason: str = ""
    failure: str = ""

    @property
    def title(self) -> str:
        """The file and the arguments."""
        return " ".join([self.file, *self.arguments])

    @property
    def runs(self) -> bool:
        return not self.reason or bool(self.failure)


def _image(file: str, *arguments: str) -> Example:
    return Example(file, "grpc", "PASS", (*arguments, "-m", PIXEL_MODEL, "-c", "2", IMAGE))


def _sequence(file: str, protocol: Protocol) -> Example:
    return Example(file, protocol, reason=_NO_SEQUENCES, failure="sequence")


EXAMPLES = (
    Example("simple_http_infer_client.py", "http"),
    Example(
        "simple_http_infer_client.py",
        "http",
        arguments=("--request-compression-algorithm=gzip", "--response-compression-algorithm=gzip"),
    ),
    Example(
        "simple_http_infer_client.py",
        "http",
        arguments=("--request-compression-algorithm=deflate", "--response-compression-algorithm=deflate"),
    ),
    Example("simple_http_aio_infer_client.py", "http", "PASS: infer"),
    Example("simple_http_async_infer_client.py", "http"),
    Example("simple_http_string_infer_client.py", "http", "PASS: string"),
    Example("simple_http_health_metadata.py", "http"),
    Example("simple_http_model_control.py", "http", "PASS: model control", models=7),
    Example("simple_http_shm_client.py", "http", "PASS: system shared memory"),
    Example("simple_http_shm_string_client.py", "http", "PASS: system shared memory"),
    Example("simple_grpc_infer_client.py", "grpc", "PASS: infer"),
    Example("simple_grpc_infer_client.py", "grpc", "PASS: infer", arguments=("-C", "gzip")),
    Example("simple_grpc_aio_infer_client.py", "grpc", "PASS: grpc aio infer"),
    Example("simple_grpc_async_infer_client.py", "grpc", "PASS: Async infer"),
    Example("simple_grpc_string_infer_client.py", "grpc", "PASS: string"),
    Example("simple_grpc_health_metadata.py", "grpc"),
    Example("simple_grpc_model_control.py", "grpc", "PASS: model control", models=8),
    Example("simple_grpc_shm_client.py", "grpc", "PASS: system shared memory"),
    Example("simple_grpc_shm_string_client.py", "grpc", "PASS: system shared memory"),
    Example("simple_grpc_custom_args_client.py", "grpc", "PASS: CustomArgs"),
    Example("simple_grpc_keepalive_client.py", "grpc", "PASS: KeepAlive"),
    Example("grpc_client.py", "grpc", "PASS"),
    Example("grpc_explicit_int_content_client.py", "grpc", "PASS: explicit int"),
    Example("grpc_explicit_int8_content_client.py", "grpc", "PASS: explicit int8"),
    Example("grpc_explicit_byte_content_client.py", "grpc", "PASS: explicit string"),
    Example("ensemble_image_client.py", "http", "PASS", arguments=("-m", IMAGE_MODEL, "-c", "2", IMAGE)),
    Example("ensemble_image_client.py", "grpc", "PASS", arguments=("-i", "grpc", "-m", IMAGE_MODEL, "-c", "2", IMAGE)),
    _image("image_client.py", "-i", "grpc"),
    _image("image_client.py", "-i", "grpc", "-a", "-b", "3"),
    _image("image_client.py", "-i", "grpc", "--streaming"),
    _image("grpc_image_client.py"),
    _image("grpc_image_client.py", "--streaming", "-b", "3"),
    Example("reuse_infer_objects_client.py", "http", arguments=("-i", "http")),
    Example("reuse_infer_objects_client.py", "grpc", arguments=("-i", "grpc")),
    _sequence("simple_http_sequence_sync_infer_client.py", "http"),
    _sequence("simple_grpc_sequence_sync_infer_client.py", "grpc"),
    _sequence("simple_grpc_sequence_stream_infer_client.py", "grpc"),
    _sequence("simple_grpc_aio_sequence_stream_infer_client.py", "grpc"),
    Example("simple_grpc_custom_repeat.py", "grpc", reason=_NO_DECOUPLED, failure="unknown model: 'repeat_int32'"),
    Example("simple_http_cudashm_client.py", "http", reason=_NO_GPU),
    Example("simple_grpc_cudashm_client.py", "grpc", reason=_NO_GPU),
    Example("image_client.py", "http", reason=_NO_ATTRDICT),
    Example("memory_growth_test.py", "http", reason=_FIXED_PORTS),
)
