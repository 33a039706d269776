"""BudgetOptions: the flags of the budgets. Cheap to import, because the command line is generated from it."""

from dataclasses import dataclass
from typing import Annotated, Final

from tpuserve_server.core.terms.setting import Setting

# Defaults, as multiples of the longest request.
_DECODED: Final = 4
_RECEIVED: Final = 16
_RECEIVED_BY_CONNECTION: Final = 4
_SENT: Final = 16
_SENT_BY_CONNECTION: Final = 4
# The same of the longest response.
_LONGEST_SENT: Final = 2


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """Sizes of the budgets in bytes. 0 derives a size from `max_request_bytes`."""

    max_decoded_bytes: Annotated[int, Setting("Listening", at_least=0)] = 0
    max_receiving_bytes: Annotated[int, Setting("Listening", at_least=0)] = 0
    max_connection_receiving_bytes: Annotated[int, Setting("Listening", at_least=0)] = 0

    max_response_bytes: Annotated[int, Setting("Listening", at_least=1)] = 1 << 30
    max_sending_bytes: Annotated[int, Setting("Listening", at_least=0)] = 0
    max_connection_sending_bytes: Annotated[int, Setting("Listening", at_least=0)] = 0

    def decoded_bytes(self, max_request_bytes: int) -> int:
        """Return the budget of decoded objects."""
        return self.max_decoded_bytes or _DECODED * max_request_bytes

    def receiving_bytes(self, max_request_bytes: int) -> int:
        """Return the budget of all requests that are still arriving. The longest request always fits."""
        return max(self.max_receiving_bytes or _RECEIVED * max_request_bytes, max_request_bytes)

    def connection_receiving_bytes(self, max_request_bytes: int) -> int:
        """Return the budget of the requests of one connection. The longest request always fits."""
        return max(
            self.max_connection_receiving_bytes or _RECEIVED_BY_CONNECTION * max_request_bytes, max_request_bytes
        )

    def sending_bytes(self, max_request_bytes: int) -> int:
        """Return the budget of all responses that clients have not read."""
        return self.max_sending_bytes or max(_SENT * max_request_bytes, _LONGEST_SENT * self.max_response_bytes)

    def connection_sending_bytes(self, max_request_bytes: int) -> int:
        """Return the budget of the responses of one connection."""
        default_bytes = max(_SENT_BY_CONNECTION * max_request_bytes, self.max_response_bytes)
        return self.max_connection_sending_bytes or default_bytes
