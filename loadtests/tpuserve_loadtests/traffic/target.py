"""The target of a load, also as plain values for workers on other machines, and the contract of its runners."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Any, Final, Protocol, Self, TypeAlias

from gevent.event import Event

from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.golden.answers import CheckPlan
from tpuserve_loadtests.golden.tolerance import Precision, Tolerance
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.requests import protocols
from tpuserve_loadtests.requests.workload import Line, Workload

TICK_S: Final = 0.5
# A request in flight at the end of a load may take its whole timeout.
STOP_MARGIN_S: Final = 5.0

# Called about twice a second with the elapsed seconds and the counts so far. Returns a reason to stop, or "".
Watch: TypeAlias = Callable[[float, Counts], str]


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a load: workload, addresses by protocol, timeout, response checks and access."""

    workload: Workload
    addresses: dict[protocols.Protocol, str]
    timeout_s: float
    checks: CheckPlan = field(default_factory=CheckPlan)
    access: Access = field(default_factory=Access)

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """Return a document for `from_wire`, which msgpack can encode."""
        return {
            "lines": [_line_to_wire(line) for line in self.workload.lines],
            "order": list(self.workload.order),
            "addresses": dict(self.addresses),
            "access": self.access.to_wire(),
            "timeout_s": self.timeout_s,
            "checks": [self.checks.share, {name: astuple(each) for name, each in self.checks.tolerances.items()}],
        }

    @classmethod
    def from_wire(cls, document: dict[str, Any]) -> Self:
        """Return the target that `to_wire` encoded."""
        workload = Workload(tuple(map(_line_from_wire, document["lines"])), tuple(document["order"]))
        share, tolerances = document["checks"]
        checks = CheckPlan(share, {name: _tolerance_from_wire(*each) for name, each in tolerances.items()})
        access = Access.from_wire(document["access"])
        return cls(workload, document["addresses"], document["timeout_s"], checks, access)


class Runs(Protocol):
    """Runner of loads, one at a time, in this process or in several.

    Setting `interrupted` ends the current load. Setting `hurried` ends the wait for its pending responses.
    """

    interrupted: Event
    hurried: Event
    lines: tuple[str, ...]

    def run(self, load: Load, watch: Watch) -> Measured: ...


def _line_to_wire(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "protocol": line.protocol,
        "spec": [line.spec.name, line.spec.version, line.spec.label],
        "signature_name": line.signature_name,
        "exchanges": [[exchange.path, exchange.body, dict(exchange.headers)] for exchange in line.exchanges],
        "rows": list(line.rows),
        "golden": list(line.golden),
    }


def _line_from_wire(document: dict[str, Any]) -> Line:
    exchanges = tuple(Exchange(path, body, headers=headers) for path, body, headers in document["exchanges"])
    spec = ModelSpec(*document["spec"])
    tuples = {name: tuple(document[name]) for name in ("rows", "golden")}
    return Line(**{**document, "spec": spec, "exchanges": exchanges, **tuples})


def _tolerance_from_wire(atol: float | None, rtol: float | None, versions: list[Any]) -> Tolerance:
    return Tolerance(atol, rtol, tuple(each and Precision(*each) for each in versions))
