"""Tolerances for the lines of a load test, from the manifests of their versions."""

from contextlib import closing
from typing import TYPE_CHECKING

from tpuserve_loadtests.cli.target import PROBE_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpuserve_client.model import ModelSpec
    from tpuserve_loadtests.golden.tolerance import Precision, Tolerance
    from tpuserve_loadtests.requests.protocols import Protocol
    from tpuserve_loadtests.traffic.target import Target


def find_tolerances(target: "Target", golden: "Mapping[str, Path | None]") -> "dict[str, Tolerance]":
    """Return the tolerance of each line in `golden`, by name, from the served version and a version directory.

    `golden` maps a line to the path of its golden answers, or to None if the server itself recorded them. Sends the
    server one request for each version and protocol. Blocks.
    """
    from tpuserve_loadtests.golden.tolerance import Tolerance, read_precision

    lines = [line for line in target.workload.lines if line.name in golden]
    served = {place: _fetch_precision(target, *place) for place in {(line.protocol, line.spec) for line in lines}}
    found = {}
    for line in lines:
        path = golden[line.name]
        of_golden = (read_precision(path),) if path is not None and path.is_dir() else ()
        found[line.name] = Tolerance(versions=(*of_golden, served[line.protocol, line.spec]))
    return found


def _fetch_precision(target: "Target", protocol: "Protocol", spec: "ModelSpec") -> "Precision | None":
    from tpuserve_loadtests.golden.tolerance import fetch_precision

    with closing(target.access.transport(target.addresses[protocol])) as transport:
        return fetch_precision(lambda exchange: transport.send(exchange, PROBE_TIMEOUT_S), protocol, spec)
