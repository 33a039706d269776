"""The target of a load, also as plain values for workers on other machines, and the contract of its runners."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Any, Final, Protocol, Self, TypeAlias

from gevent.event import Event

from tpuserve_client.dtypes import describe
from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.dtypes import BY_DTYPE
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
_DTYPES: Final = {describe(dtype): dtype for dtype in BY_DTYPE}

# Called about twice a second with the elapsed seconds and the counts so far. Returns a reason to stop, or "".
Watch: TypeAlias = Callable[[float, Counts], str]


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a load: workload, addresses by protocol, timeout, response checks and access.

    Requests go to the `replicas` of their port, gRPC or REST, in turn, if there are any, instead of their address.
    `connections` is the number for all processes, as in Connections.
    """

    workload: Workload
    addresses: dict[protocols.Protocol, str]
    timeout_s: float
    checks: CheckPlan = field(default_factory=CheckPlan)
    access: Access = field(default_factory=Access)
    replicas: tuple[str, ...] = ()
    connections: int | None = None

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """Return a document for `from_wire`, which msgpack can encode."""
        return {
            "lines": [_line_to_wire(line) for line in self.workload.lines],
            "order": list(self.workload.order),
            "addresses": dict(self.addresses),
            "replicas": list(self.replicas),
            "connections": self.connections,
            "access": self.access.to_wire(),
            "timeout_s": self.timeout_s,
            "checks": [
                self.checks.share,
                {name: astuple(each) for name, each in self.checks.tolerances.items()},
                dict(self.checks.versions),
            ],
        }

    @classmethod
    def from_wire(cls, document: dict[str, Any]) -> Self:
        """Return the target that `to_wire` encoded."""
        workload = Workload(tuple(map(_line_from_wire, document["lines"])), tuple(document["order"]))
        share, tolerances, versions = document["checks"]
        checks = CheckPlan(share, {name: _tolerance_from_wire(*each) for name, each in tolerances.items()}, versions)
        access = Access.from_wire(document["access"])
        replicas = tuple(document["replicas"])
        connections = document["connections"]
        return cls(workload, document["addresses"], document["timeout_s"], checks, access, replicas, connections)


class Runs(Protocol):
    """Runner of loads, one at a time, in this process or in several.

    Setting `interrupted` ends the current load. Setting `hurried` ends the wait for its pending responses.
    """

    interrupted: Event
    hurried: Event

    def run(self, load: Load, watch: Watch) -> Measured: ...


def _line_to_wire(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "protocol": line.protocol,
        "spec": [line.spec.name, line.spec.version, line.spec.label],
        "signature": _signature_to_wire(line.signature),
        "exchanges": [[exchange.path, exchange.body, dict(exchange.headers)] for exchange in line.exchanges],
        "rows": list(line.rows),
        "golden": list(line.golden),
        "filters": list(map(list, line.filters)),
    }


def _line_from_wire(document: dict[str, Any]) -> Line:
    exchanges = tuple(Exchange(path, body, headers=headers) for path, body, headers in document["exchanges"])
    spec = ModelSpec(*document["spec"])
    tuples = {name: tuple(document[name]) for name in ("rows", "golden")}
    signature = Signature(*document["signature"][:1], *map(_specs_from_wire, document["signature"][1:]))
    filters = tuple(map(tuple, document["filters"]))
    return Line(
        **{**document, "spec": spec, "signature": signature, "exchanges": exchanges, **tuples, "filters": filters}
    )


def _signature_to_wire(signature: Signature) -> list[Any]:
    sides = (signature.inputs, signature.outputs)
    return [
        signature.name,
        *([[each.name, each.dtype and describe(each.dtype), each.shape] for each in side.values()] for side in sides),
    ]


def _specs_from_wire(specs: list[Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(name, dtype and _DTYPES[dtype], shape if shape is None else tuple(shape))
        for name, dtype, shape in specs
    }


def _tolerance_from_wire(atol: float | None, rtol: float | None, versions: list[Any]) -> Tolerance:
    return Tolerance(atol, rtol, tuple(each and Precision(*each) for each in versions))
