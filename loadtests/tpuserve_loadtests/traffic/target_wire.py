"""A target as plain values, to be sent to a worker on whatever machine."""

from typing import Any

from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.traffic.engine import Target
from tpuserve_loadtests.workload import Workload


def target_to_wire(target: Target) -> dict[str, Any]:  # plain values of several types
    """What `target_from_wire` reads, for msgpack."""
    spec = target.workload.spec
    return {
        "spec": [spec.name, spec.version, spec.label],
        "rows": target.workload.rows,
        "exchanges": {
            protocol: [[exchange.path, exchange.body] for exchange in exchanges]
            for protocol, exchanges in target.workload.exchanges.items()
        },
        "addresses": dict(target.addresses),
        "timeout_s": target.timeout_s,
    }


def target_from_wire(document: dict[str, Any]) -> Target:
    """The target of `target_to_wire`."""
    exchanges = {
        protocol: tuple(Exchange(path, body) for path, body in sent) for protocol, sent in document["exchanges"].items()
    }
    workload = Workload(ModelSpec(*document["spec"]), document["rows"], exchanges)
    return Target(workload, document["addresses"], document["timeout_s"])
