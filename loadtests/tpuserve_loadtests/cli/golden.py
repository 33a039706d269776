"""The option `--golden`: the expected answers, and the share of responses to compare with them."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli.command import group, option
from tpuserve_loadtests.cli.explicit_options import explicit_names, flag
from tpuserve_loadtests.cli.target import PROBE_TIMEOUT_S
from tpuserve_loadtests.cli.tolerances import find_tolerances
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED

if TYPE_CHECKING:
    from tpuserve_client.model import Signature
    from tpuserve_loadtests.judgement.threshold import Threshold
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.traffic.target import Target

RECORD: Final = "record"
_OF_CHECKS: Final = ("check_share", "atol", "rtol")

_DEFAULT: Final = "[default: the manifest's, or by the outputs' dtype]"


class Golden(click.ParamType[str | Path]):
    """`record`, or the path of a file or of a version directory."""

    name = "record|PATH"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        """Convert as ParamType requires."""
        if value == RECORD:
            return value
        if "://" in str(value):
            self.fail(f"{value} is not a local path. Copy the version directory to this machine.", param, ctx)
        return Path(str(click.Path(exists=True).convert(value, param, ctx)))


@dataclass(frozen=True, slots=True)
class ToleranceOptions:
    """The allowed difference between a response and the expected response."""

    atol: float | None = option("--atol", type=click.FloatRange(0), help=f"Absolute tolerance of outputs.  {_DEFAULT}")
    rtol: float | None = option("--rtol", type=click.FloatRange(0), help=f"Relative tolerance of outputs.  {_DEFAULT}")


@dataclass(frozen=True, slots=True)
class GoldenOptions:
    """The source of golden answers, and the share of responses to check."""

    golden: str | Path | None = option(
        "--golden",
        type=Golden(),
        metavar="record|PATH",
        help="Compare responses with golden responses: recorded before the load (record), from an .npz or .json "
        "file of inputs and outputs, or from a version directory.",
    )
    check_share: float = option(
        "--check-share",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.01,
        show_default=True,
        help="Share of responses to compare.",
    )
    tolerance: ToleranceOptions = group(ToleranceOptions)

    @property
    def path(self) -> Path | None:
        """The path of the golden answers; None if the command records them, or has none."""
        return self.golden if isinstance(self.golden, Path) else None


def with_golden(target: "Target", options: GoldenOptions, gates: "tuple[Threshold, ...]") -> "Target":
    """Add the plan of checks to the target, and record golden answers if requested.

    Exits with a message if a request fails during the recording. Raises a usage error if options or gates need
    comparisons and the target has no golden answers.
    """
    from tpuserve_loadtests.golden.answers import CheckPlan

    tolerances = target.checks.tolerances
    if options.golden == RECORD:
        target = _recorded(target)
        tolerances = find_tolerances(target, dict.fromkeys(line.name for line in target.workload.lines))
    elif not any(line.golden for line in target.workload.lines):
        _refuse_checks(gates)
    atol, rtol = options.tolerance.atol, options.tolerance.rtol
    adjusted = {name: replace(each, atol=atol, rtol=rtol) for name, each in tolerances.items()}
    return replace(target, checks=CheckPlan(options.check_share, adjusted))


def golden_settings(target: "Target") -> dict[str, str]:
    """Return the allowed differences for a report's settings, or an empty dict without golden answers."""
    from tpuserve_loadtests.golden.answers import GoldenAnswers, is_inexact

    allowed: dict[str, None] = {}
    for line in target.workload.lines:
        if line.golden:
            tolerance = target.checks.tolerance(line)
            outputs = GoldenAnswers(line.golden, tolerance).outputs(0)
            allowed |= dict.fromkeys(str(tolerance.of(array.dtype)) for array in outputs.values() if is_inexact(array))
    return {"Tolerance": "; ".join(allowed)} if allowed else {}


def golden_notes(target: "Target", measured: "Measured") -> tuple[str, ...]:
    """Return notes on the limits of the comparisons."""
    from tpuserve_loadtests.golden.answers import GoldenAnswers

    checked = [line for line in target.workload.lines if line.golden]
    notes = [
        f"{line.name}: all requests have the same golden response, so the comparison cannot detect mixed-up responses"
        for line in checked
        if GoldenAnswers(line.golden, target.checks.tolerance(line)).are_alike()
    ]
    if checked and not measured.total.checked:
        notes.append("no response was compared with its golden response; run longer, or increase --check-share")
    return tuple(notes)


def _refuse_checks(gates: "tuple[Threshold, ...]") -> None:
    explicit = explicit_names()
    requiring = [flag(name) for name in _OF_CHECKS if name in explicit] + [
        str(gate) for gate in gates if gate.is_of_checks
    ]
    if requiring:
        raise click.UsageError(f"{requiring[0]} needs golden responses. Set --golden.")


def _recorded(target: "Target") -> "Target":
    from tpuserve_loadtests.traffic.senders import NotRecorded, record_golden

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


def _signature(target: "Target", name: str) -> "Signature":
    line = next(line for line in target.workload.lines if line.name == name)
    with target.access.client(target.addresses[line.protocol], PROBE_TIMEOUT_S) as client:
        metadata = client.metadata(line.spec.name, version=line.spec.version, label=line.spec.label)
        return metadata.signature(line.signature_name)
