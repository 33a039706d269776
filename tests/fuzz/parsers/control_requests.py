"""Control requests: reloads, the model repository, settings and shared memory, over gRPC and in JSON."""

from google.protobuf.message import DecodeError

from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target
from tpuserve_formats.messages.oip import RepositoryModelLoadRequest
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.wire.model_server_config import decode_reload_request
from tpuserve_server.wire.oip import control_messages
from tpuserve_server.wire.oip.control_messages import read_load_parameters


def run(data: bytes) -> bool:
    """Read a message as every kind of control request."""
    return any([_reload(data), _load(data), _json(data)])


def _reload(data: bytes) -> bool:
    try:
        decode_reload_request(data)
    except ServingError as error:
        check_refusal(error)
        return False
    return True


def _load(data: bytes) -> bool:
    try:
        proto = RepositoryModelLoadRequest.FromString(data)
        values = {name: getattr(each, each.WhichOneof("parameter_choice") or "string_param")
                  for name, each in proto.parameters.items()}  # fmt: skip
        read_load_parameters(proto.model_name, {n: v for n, v in values.items() if isinstance(v, str | bytes)})
    except DecodeError:
        return False
    except ServingError as error:
        # Triton's code for files in a request.
        check_refusal(error, Code.INTERNAL)
        return False
    return True


def _json(data: bytes) -> bool:
    try:
        document = control_messages.parse_object(data)
        parameters = control_messages.read_parameters(document)
        control_messages.read_boolean(parameters, "unload_dependents")
        read_load_parameters("m", control_messages.read_texts(parameters))
        for key in document:
            control_messages.read_size(document, key)
    except ServingError as error:
        check_refusal(error, Code.INTERNAL)
        return False
    return True


TARGET = Target(
    run,
    max_bytes=1024,
    words=(
        b'{"parameters":',
        b'"config":"{}"',
        b'"unload_dependents":true',
        b'"max_batch_size":',
        b"tensorflow",
        b"/m",
    ),
)
