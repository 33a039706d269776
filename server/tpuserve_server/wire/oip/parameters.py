"""Request parameters: which the server honours, ignores or refuses.

Source: Triton's parameters extension and http_server.cc, infer_handler.cc (SetInferenceRequestMetadata).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.priority import Priority

# A client may ask for an additional empty last response. Models here have one response, which is the last.
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_RESERVED_PREFIX: Final = "triton_"
_MICROSECONDS: Final = 1e6


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """The parameters that the server honours.

    `signature_name` is empty for the default. `priority` is None unless the request has one. `timeout_s` is None for no
    timeout. `binary_data_output` is for REST alone.
    """

    signature_name: str = ""
    priority: Priority | None = None
    timeout_s: float | None = None
    binary_data_output: bool = False


NO_PARAMETERS: Final = RequestParameters()


def read_parameters(values: Mapping[str, object]) -> RequestParameters:
    """Return the parameters whose types the protocol's parser has checked. Ignore unknown names.

    Triton's highest priority is 1, and 0 is the default. This server has two: 1 is high, and all larger values are low.

    Raises:
        InvalidArgument: a parameter would make the request part of a sequence, or has a reserved name.
    """
    # In this order: the parameters of a gRPC request have none.
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if values.get(name):
            raise InvalidArgument(
                f"parameter '{name}' is not supported: models of this server keep no state between requests"
            )
    for name in values:
        if name.startswith(_RESERVED_PREFIX) and name != EMPTY_FINAL_RESPONSE:
            raise InvalidArgument(
                f"parameter keys starting with '{_RESERVED_PREFIX}' are reserved for Triton usage. Only the following "
                f"keys starting with '{_RESERVED_PREFIX}' are allowed: {EMPTY_FINAL_RESPONSE}"
            )
    signature_name, priority = values.get("signature_name", ""), values.get("priority", 0)
    timeout_us, is_binary = values.get("timeout", 0), values.get("binary_data_output", False)
    return RequestParameters(
        shown(signature_name) if isinstance(signature_name, str) else "",
        _priority(priority) if isinstance(priority, int) else None,
        timeout_us / _MICROSECONDS if isinstance(timeout_us, int) and timeout_us else None,
        is_binary is True,
    )


def _priority(number: int) -> Priority | None:
    if not number:
        return None
    return Priority.HIGH if number == 1 else Priority.LOW
