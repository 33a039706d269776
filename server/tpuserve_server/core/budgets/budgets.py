"""Budgets: all budgets of a server, with their sizes."""

from dataclasses import dataclass
from typing import Self

from tpuserve_server.core.budgets.decoded import DecodedBudget
from tpuserve_server.core.budgets.options import BudgetOptions
from tpuserve_server.core.budgets.receiving import ReceivingBudget
from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.freed_memory import LateTrim


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budget of each request's decoded objects, and the one that all unfinished requests share."""

    decoded: DecodedBudget
    receiving: ReceivingBudget

    @classmethod
    def of(cls, options: BudgetOptions, max_request_bytes: int, clock: Clock, processes: int = 1) -> Self:
        """Create the budgets for requests of at most `max_request_bytes`.

        Several `processes` that receive requests share the budget of arriving requests.
        """
        return cls(
            DecodedBudget(options.decoded_bytes(max_request_bytes)),
            ReceivingBudget(
                options.receiving_bytes(max_request_bytes, processes),
                options.connection_receiving_bytes(max_request_bytes),
                clock,
                LateTrim(),
            ),
        )
