"""Vertex AI's predict requests: TensorFlow Serving's body with `parameters`, which may name a signature."""

from typing import Final

from tpuserve_server.core.budgets.decoded import DEFAULT_DECODED, DecodedBudget
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.wire.json.body import parse_json
from tpuserve_server.wire.json.request import check_object
from tpuserve_server.wire.json.tensor import PredictBody, parse_predict_body

# Key in the ASGI scope of a request whose body is read by these rules.
VERTEX_SCOPE: Final = "tpuserve.vertex"

_SIGNATURE_NAME = "signature_name"


def parse_vertex_body(body: bytes, budget: DecodedBudget = DEFAULT_DECODED) -> PredictBody:
    """Parse a body and its signature name, which may be in `parameters`.

    Raises:
        InvalidArgument: as `parse_predict_body`, or `parameters` holds anything else.
    """
    parsed = parse_predict_body(body, budget)
    # A backslash may escape a part of the name.
    if b'"parameters"' not in body and b"\\" not in body:
        return parsed
    large = parsed.large
    parameters = check_object(parse_json(body)).get("parameters") if large is None else large.member("parameters")
    name = _read_parameters(parameters)
    if name and parsed.signature_name not in ("", name):
        raise InvalidArgument(
            f"The request names two signatures: '{parsed.signature_name}', and '{name}' in 'parameters'"
        )
    parsed.signature_name = name or parsed.signature_name
    return parsed


def _read_parameters(parameters: object) -> str:
    """Return the signature name, or "". Clients of the platform send null for no parameters."""
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise InvalidArgument('\'parameters\' must be an object, such as {"signature_name": "serving_default"}')
    if unknown := sorted(parameters.keys() - {_SIGNATURE_NAME}):
        raise InvalidArgument(f"'parameters' may hold only '{_SIGNATURE_NAME}'; it also holds '{unknown[0]}'")
    name = parameters.get(_SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise InvalidArgument(f"'{_SIGNATURE_NAME}' in 'parameters' must be a string")
    return name
