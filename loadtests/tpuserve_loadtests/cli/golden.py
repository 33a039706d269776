"""The option `--golden`: the expected answers, their tolerances, and the share of responses to compare with them."""

import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click

from tpuserve_client.model import Signature
from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli import access, targets
from tpuserve_loadtests.cli.options import RECORD, GoldenOptions
from tpuserve_loadtests.golden.answers import CheckPlan, GoldenAnswers, is_inexact
from tpuserve_loadtests.golden.tolerance import Tolerance, fetch_precision, read_precision
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.traffic.senders import NotRecorded, record_golden
from tpuserve_loadtests.traffic.target import Target

_OF_CHECKS: Final = ("check_share", "atol", "rtol")


def with_golden(target: Target, options: GoldenOptions, gates: tuple[Threshold, ...]) -> Target:
    """Add the plan of checks to the target, and record golden answers if requested.

    Exits with a message if a request fails during the recording. Raises a usage error if options or gates need
    comparisons and the target has no golden answers.
    """
    tolerances = target.checks.tolerances
    if options.golden == RECORD:
        target = _recorded(target)
        tolerances = find_tolerances(target, dict.fromkeys(line.name for line in target.workload.lines))
    elif not any(line.golden for line in target.workload.lines):
        _refuse_checks(gates)
    atol, rtol = options.tolerance.atol, options.tolerance.rtol
    adjusted = {name: replace(each, atol=atol, rtol=rtol) for name, each in tolerances.items()}
    return replace(target, checks=CheckPlan(options.check_share, adjusted))


def golden_settings(target: Target) -> dict[str, str]:
    """Return the allowed differences for a report's settings, or an empty dict without golden answers."""
    allowed: dict[str, None] = {}
    for line in target.workload.lines:
        if line.golden:
            tolerance = target.checks.tolerance(line)
            outputs = GoldenAnswers(line.golden, tolerance).outputs(0)
            allowed |= dict.fromkeys(str(tolerance.of(array.dtype)) for array in outputs.values() if is_inexact(array))
    return {"Tolerance": "; ".join(allowed)} if allowed else {}


def golden_notes(target: Target, measured: Measured) -> tuple[str, ...]:
    """Return notes on the limits of the comparisons."""
    checked = [line for line in target.workload.lines if line.golden]
    notes = [
        f"{line.name}: all requests have the same golden response, so the comparison cannot detect mixed-up responses"
        for line in checked
        if GoldenAnswers(line.golden, target.checks.tolerance(line)).are_alike()
    ]
    if checked and not measured.total.checked:
        notes.append("no response was compared with its golden response; run longer, or increase --check-share")
    return tuple(notes)


def _refuse_checks(gates: tuple[Threshold, ...]) -> None:
    explicit = access.explicit_names()
    requiring = [access.flag(name) for name in _OF_CHECKS if name in explicit] + [
        str(gate) for gate in gates if gate.is_of_checks
    ]
    if requiring:
        raise click.UsageError(f"{requiring[0]} needs golden responses. Set --golden.")


def _recorded(target: Target) -> Target:
    requests = sum(len(line.exchanges) for line in target.workload.lines)
    label = f"Recording {counted(requests, 'golden response')}, one at a time"
    signatures = {line.name: _signature(target, line.name) for line in target.workload.lines}
    try:
        # Without a terminal, the bar prints only its label.
        with click.progressbar(length=requests, label=label, file=sys.stderr, width=0) as bar:
            return record_golden(target, signatures, lambda: bar.update(1))
    except NotRecorded as error:
        click.echo(f"Error: Cannot record golden responses: {error}", err=True)
        sys.exit(EXIT_FAILED)


def _signature(target: Target, name: str) -> Signature:
    line = next(line for line in target.workload.lines if line.name == name)
    with target.access.client(target.addresses[line.protocol], targets.PROBE_TIMEOUT_S) as client:
        metadata = client.metadata(line.spec.name, version=line.spec.version, label=line.spec.label)
        return metadata.signature(line.signature_name)


def find_tolerances(target: Target, golden: Mapping[str, Path | None]) -> dict[str, Tolerance]:
    """Return the tolerance of each line in `golden`, by name, from the served version and a version directory.

    `golden` maps a line to the path of its golden answers, or to None if the server itself recorded them. Sends the
    server one request for each version and protocol. Blocks.
    """
    lines = [line for line in target.workload.lines if line.name in golden]
    served = {}
    for protocol, spec in {(line.protocol, line.spec) for line in lines}:
        with closing(target.access.transport(target.addresses[protocol])) as transport:
            send = partial(transport.send, timeout_s=targets.PROBE_TIMEOUT_S)
            served[protocol, spec] = fetch_precision(send, protocol, spec)
    found = {}
    for line in lines:
        path = golden[line.name]
        of_golden = (read_precision(path),) if path is not None and path.is_dir() else ()
        found[line.name] = Tolerance(versions=(*of_golden, served[line.protocol, line.spec]))
    return found
