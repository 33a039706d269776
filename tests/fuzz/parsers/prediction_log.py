"""Recorded requests: PredictionLogs that the server replays at a load, and logs that a load test replays."""

from tests.fuzz.parsers.json_signatures import SIGNATURES
from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target
from tpuserve_loadtests.requests.recording import read_json_log, read_prediction_log
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.versions.warmup import decode_record

_SIGNATURES = {"serving_default": SIGNATURES[b"f"], "s": SIGNATURES[b"s"]}


def run(data: bytes) -> bool:
    """Read one record in every reader."""
    return any([_server(data), _load_test(data), _json(data)])


def _server(data: bytes) -> bool:
    try:
        return bool(decode_record(data, _SIGNATURES, check_method_names=True))
    except ServingError as error:
        check_refusal(error, Code.FAILED_PRECONDITION)
        return False


def _load_test(data: bytes) -> bool:
    try:
        return read_prediction_log(data, with_answer=True) is not None
    except ValueError:
        return False


def _json(data: bytes) -> bool:
    try:
        return read_json_log(data) is not None
    except ValueError:
        return False


TARGET = Target(
    run,
    words=(b'"predict_log":', b'"request":', b'"inputs":', b'"dtype":"DT_FLOAT"', b'"tensor_shape":', b'"float_val":'),
)
