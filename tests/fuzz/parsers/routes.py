"""Paths of requests: of TensorFlow Serving, the Open Inference Protocol and the platform."""

from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target, expect
from tpuserve_server.core.terms.errors import Code, InvalidArgument, ServingError
from tpuserve_server.protocols.oip_rest import route as oip
from tpuserve_server.protocols.tf_rest import route as tensorflow
from tpuserve_server.protocols.vertex.paths import VertexPaths

_METHODS = {b"G": "GET", b"P": "POST", b"O": "OPTIONS"}
_MAX_INT64 = 2**63 - 1


def run(data: bytes) -> bool:
    """Parse a path. The first byte selects the method."""
    method, path = _METHODS.get(data[:1], "GET"), data[1:]
    _check_vertex(path)
    return any([_is_route(tensorflow.parse_route, method, path), _is_route(oip.parse_route, method, path)])


def _check_vertex(path: bytes) -> None:
    try:
        text = path.decode()
        VertexPaths.of("m", ("health", text), ("predict", "/p"), ())
        VertexPaths.of("m", ("health", None), ("predict", text), ())
    except UnicodeDecodeError:
        return
    except InvalidArgument as error:
        check_refusal(error)


def _is_route(parse: object, method: str, path: bytes) -> bool:
    assert callable(parse)
    try:
        route = parse(method, path)
    except ServingError as error:
        check_refusal(error, Code.NOT_FOUND)
        return False
    version = route.spec.version
    expect(version is None or 0 <= version <= _MAX_INT64, f"version {version}")
    expect(version is None or route.spec.version_label is None, "a version and a label")
    return True


TARGET = Target(
    run,
    max_bytes=1200,
    words=(
        b"/v1/models/", b"/versions/", b"/labels/", b":predict", b"/metadata", b"/v2/models/", b"/infer", b"/ready",
        b"/v2/repository/", b"/index", b"/load", b"/v2/systemsharedmemory/region/", b"/register", b"%2e%2e", b"%00",
        b"%ff", b"?metadata_field=", b"9223372036854775808", b"http://x",
    ),
)  # fmt: skip
