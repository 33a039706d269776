"""An endpoint with a REST application, but without models and protocols."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.endpoint import Endpoint
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.refusals import RateLimit
from tpuserve_server.observe.metrics.load_report import LoadReports
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def answer(_scope: "Scope", _receive: "Receive", send: "Send") -> None:
    """Answer an empty object, as a REST application."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def bare_endpoint(
    clock: Clock, traffic: Traffic, options: HostOptions | None = None, rate: RateLimit | None = None
) -> Endpoint:
    """Return an endpoint that answers every REST request by `answer`."""
    budgets = Budgets.of(BudgetOptions(), 1000, clock)
    application: Any = SimpleNamespace(  # stands for the server's parts that an endpoint uses
        rest=answer,
        rest_exchanges=None,
        rpc={},
        receiving=budgets.receiving,
        sending=budgets.sending,
        overload_gate=OverloadGate(tuple, traffic, clock),
        traffic=traffic,
        load_reports=LoadReports(PrometheusMetrics(), clock),
    )
    return Endpoint(application, options or HostOptions(), InFlight(), rate)
