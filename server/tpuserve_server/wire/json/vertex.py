"""Vertex AI's predict requests: TensorFlow Serving's body with `parameters`, which may name a signature."""

from typing import Final

from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.wire.json.tensor import PredictBody

# Key in the ASGI scope of a request whose body is read by these rules.
VERTEX_SCOPE: Final = "tpuserve.vertex"

_SIGNATURE_NAME = "signature_name"


def may_have_parameters(body: bytes) -> bool:
    """Return whether `with_parameters` must read a body. An escape may hide the name."""
    return b"parameters" in body or b"\\" in body


def with_parameters(parsed: PredictBody) -> PredictBody:
    """Return `parsed` with the name of the signature that `parameters` may hold.

    Raises:
        InvalidArgument: `parameters` holds anything else, or another name.
    """
    name = _read_parameters(parsed.member("parameters"))
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
        raise InvalidArgument(f"'parameters' may hold only '{_SIGNATURE_NAME}'; it also holds '{shown(unknown[0])}'")
    name = parameters.get(_SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise InvalidArgument(f"'{_SIGNATURE_NAME}' in 'parameters' must be a string")
    return shown(name)
