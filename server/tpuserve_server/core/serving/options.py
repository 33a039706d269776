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

    max_decoded_bytes: Annotated[
        int,
        Setting(
            "Listening",
            "Maximum memory for the decoded values, lists, objects and dimensions of one request; 0: 4 times "
            "max_request_bytes.",
            page="maximum memory for the decoded values, lists, objects and dimensions of one request; 0: 4 times "
            "`max_request_bytes` ([Limits](limits.md))",
            at_least=0,
        ),
    ] = 0
    max_receiving_bytes: Annotated[
        int,
        Setting(
            "Listening",
            "Maximum memory for the requests that are still arriving, all together; 0: 16 times max_request_bytes.",
            page="maximum memory for the requests that are still arriving, all together; 0: 16 times "
            "`max_request_bytes` ([Limits](limits.md))",
            at_least=0,
        ),
    ] = 0
    max_connection_receiving_bytes: Annotated[
        int,
        Setting(
            "Listening",
            "Maximum memory for the requests that are still arriving on one connection; 0: 4 times max_request_bytes.",
            page="maximum memory for the requests that are still arriving on one connection; 0: 4 times "
            "`max_request_bytes` ([Limits](limits.md))",
            at_least=0,
        ),
    ] = 0

    max_response_bytes: Annotated[
        int,
        Setting(
            "Listening",
            "Maximum size of a response, which is known before it is encoded.",
            page="maximum size of a response, which is known before it is encoded ([Limits](limits.md))",
            at_least=1,
        ),
    ] = 1 << 30
    max_sending_bytes: Annotated[
        int,
        Setting(
            "Listening",
            "Maximum memory for the responses that clients have not read, all together; 0: 16 times max_request_bytes, "
            "at least twice max_response_bytes.",
            page="maximum memory for the responses that clients have not read, all together; 0: 16 times "
            "`max_request_bytes`, at least twice `max_response_bytes` ([Limits](limits.md))",
            at_least=0,
        ),
    ] = 0
    max_connection_sending_bytes: Annotated[
        int,
        Setting(
            "Listening",
            "Maximum memory for the responses that a client has not read on one connection; 0: 4 times "
            "max_request_bytes, at least max_response_bytes.",
            page="maximum memory for the responses that a client has not read on one connection; 0: 4 times "
            "`max_request_bytes`, at least `max_response_bytes` ([Limits](limits.md))",
            at_least=0,
        ),
    ] = 0

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
