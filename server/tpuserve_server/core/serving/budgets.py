"""Budgets: all budgets of a server, with their sizes."""

from dataclasses import dataclass
from typing import Self

from tpuserve_server.core.serving.decoded import DecodedBudget
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.response import ResponseBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.system.memory import LateTrim
from tpuserve_server.core.terms.deadline import Clock


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of each request's decoded objects and of its response, and those that all clients share."""

    decoded: DecodedBudget
    receiving: ReceivingBudget
    response: ResponseBudget
    sending: SendingBudget

    @classmethod
    def of(
        cls,
        options: BudgetOptions,
        max_request_bytes: int,
        clock: Clock,
        write_timeout_s: float = 30.0,
    ) -> Self:
        """Create the budgets for requests of at most `max_request_bytes`.

        A client must take some bytes of a response within `write_timeout_s`.
        """
        return cls(
            DecodedBudget(options.decoded_bytes(max_request_bytes)),
            ReceivingBudget(
                options.receiving_bytes(max_request_bytes),
                options.connection_receiving_bytes(max_request_bytes),
                clock,
                LateTrim(),
            ),
            ResponseBudget(options.max_response_bytes),
            SendingBudget(
                options.sending_bytes(max_request_bytes),
                options.connection_sending_bytes(max_request_bytes),
                write_timeout_s,
                clock,
                LateTrim(),
            ),
        )
