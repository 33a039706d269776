"""Serialization of targets as plain values, for workers on other machines."""

from typing import Any

from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.golden.answer_check import CheckPlan
from tpuserve_loadtests.golden.tolerance import Precision, Tolerance
from tpuserve_loadtests.requests.workload import Line, Workload
from tpuserve_loadtests.traffic.engine import Target


def target_to_wire(target: Target) -> dict[str, Any]:  # plain values of several types
    """Return a document for `target_from_wire`, which msgpack can encode."""
    return {
        "lines": [_line_to_wire(line) for line in target.workload.lines],
        "order": list(target.workload.order),
        "addresses": dict(target.addresses),
        "access": target.access.to_wire(),
        "timeout_s": target.timeout_s,
        "checks": [
            target.checks.share,
            {name: _tolerance_to_wire(each) for name, each in target.checks.tolerances.items()},
        ],
    }


def target_from_wire(document: dict[str, Any]) -> Target:
    """Return the target that `target_to_wire` encoded."""
    workload = Workload(tuple(_line_from_wire(line) for line in document["lines"]), tuple(document["order"]))
    share, tolerances = document["checks"]
    checks = CheckPlan(share, {name: _tolerance_from_wire(each) for name, each in tolerances.items()})
    access = Access.from_wire(document["access"])
    return Target(workload, document["addresses"], document["timeout_s"], checks, access)


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


def _tolerance_to_wire(tolerance: Tolerance) -> list[Any]:
    versions = [each and [each.compute_dtype, each.atol, each.rtol, each.origin] for each in tolerance.versions]
    return [tolerance.atol, tolerance.rtol, versions]


def _tolerance_from_wire(document: list[Any]) -> Tolerance:
    atol, rtol, versions = document
    return Tolerance(atol, rtol, tuple(each and Precision(*each) for each in versions))
