"""What the manifests of the versions in a load test allow their answers to differ by."""

from contextlib import closing
from typing import TYPE_CHECKING

from tpuserve_loadtests.cli.target import PROBE_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpuserve_loadtests.golden.tolerance import Precision, Tolerance
    from tpuserve_loadtests.traffic.engine import Target
    from tpuserve_loadtests.workload import Line


def find_tolerances(target: "Target", golden: "Mapping[str, Path | None]") -> "dict[str, Tolerance]":
    """Tolerances of the lines in `golden`, by name: of the served version and of a golden version directory.

    `golden`: where each line's golden answers came from; None for the server itself. Asks the server for each.
    """
    from tpuserve_loadtests.golden.manifest_precision import read_precision
    from tpuserve_loadtests.golden.tolerance import Tolerance

    found = {}
    for line in target.workload.lines:
        if line.name in golden:
            path = golden[line.name]
            of_golden = (read_precision(path),) if path is not None and path.is_dir() else ()
            found[line.name] = Tolerance(versions=(*of_golden, _served(target, line)))
    return found


def _served(target: "Target", line: "Line") -> "Precision | None":
    from tpuserve_loadtests.golden.manifest_precision import ask_precision

    with closing(target.access.transport(target.addresses[line.protocol])) as transport:
        return ask_precision(lambda exchange: transport.send(exchange, PROBE_TIMEOUT_S), line.protocol, line.spec)
