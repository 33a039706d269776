"""A guard with meters of its own, for tests of a rule."""

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.protocols.guard import Guard, Rule
from tpuserve_server.protocols.request_meter import RequestMeter


def make_guard(rule: Rule | None, metrics: FakeMetrics | None = None) -> Guard:
    """Return a guard that counts refused requests in `metrics`."""
    metrics = metrics or FakeMetrics()
    rpc, rest = (RequestMeter(FakeService(), metrics, FakeClock(), protocol) for protocol in ("grpc", "rest"))
    return Guard(rule, rpc, rest)
