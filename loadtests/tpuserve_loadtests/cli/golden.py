"""`--golden`: what right answers are, and how many of those under load are compared with them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tpuserve_loadtests.cli.options import all_of
from tpuserve_loadtests.cli.said import flag, said_names
from tpuserve_loadtests.cli.target import PROBE_TIMEOUT_S
from tpuserve_loadtests.cli.tolerances import find_tolerances
from tpuserve_loadtests.exit_codes import EXIT_FAILED

if TYPE_CHECKING:
    from tpuserve_client.model import Signature
    from tpuserve_loadtests.judgement.threshold import Threshold
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.traffic.engine import Target

RECORD: Final = "record"
_OF_CHECKS: Final = ("check_share", "atol", "rtol")

_Command = TypeVar("_Command", bound=Callable[..., Any])  # click's commands take any arguments


class Golden(click.ParamType[str | Path]):
    """`record`, or the path of a file or of a version directory."""

    name = "record|PATH"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        """As ParamType's."""
        if value == RECORD:
            return value
        if "://" in str(value):
            self.fail(f"{value} is not on this machine: copy the version directory here, and give its path", param, ctx)
        return Path(str(click.Path(exists=True).convert(value, param, ctx)))


def tolerance_options(command: _Command) -> _Command:
    """Add --atol and --rtol, the allowed difference between an answer and the one that it is compared with."""
    default = "[default: the manifests', else by the outputs' dtype]"
    return all_of(
        click.option("--atol", type=click.FloatRange(0), help=f"Allowed difference.  {default}"),
        click.option("--rtol", type=click.FloatRange(0), help=f"Allowed difference, relative to the value.  {default}"),
    )(command)


def golden_options(command: _Command) -> _Command:
    """Which answers are right, and how many are looked at."""
    share = click.FloatRange(0, 1, min_open=True)
    return all_of(
        click.option(
            "--golden",
            type=Golden(),
            metavar="record|PATH",
            help="Compare answers: with those recorded before the load, or in an .npz or .json of inputs and outputs, "
            "or in a version directory's recorded requests.",
        ),
        click.option("--check-share", type=share, default=0.01, show_default=True, help="Share of answers compared."),
        tolerance_options,
    )(command)


def with_golden(target: "Target", given: Mapping[str, Any], gates: "tuple[Threshold, ...]") -> "Target":
    """Add the plan of checks to the target, and golden answers if they are to be recorded.

    Ends the program with a message if a request fails while nothing else runs, or if options or gates ask for
    comparisons without golden answers.
    """
    from tpuserve_loadtests.golden.answer_check import CheckPlan

    tolerances = target.checks.tolerances
    if given["golden"] == RECORD:
        target = _recorded(target)
        tolerances = find_tolerances(target, dict.fromkeys(line.name for line in target.workload.lines))
    elif not any(line.golden for line in target.workload.lines):
        _refuse_checks(given, gates)
    asked = {name: replace(each, atol=given["atol"], rtol=given["rtol"]) for name, each in tolerances.items()}
    return replace(target, checks=CheckPlan(given["check_share"], asked))


def golden_settings(target: "Target") -> dict[str, str]:
    """Describe the allowed differences, for a report's settings; empty without golden answers."""
    from tpuserve_loadtests.golden.difference import is_inexact
    from tpuserve_loadtests.golden.golden_answers import GoldenAnswers

    allowed: dict[str, None] = {}
    for line in target.workload.lines:
        if line.golden:
            tolerance = target.checks.tolerance(line)
            outputs = GoldenAnswers(line.golden, tolerance).outputs(0)
            allowed |= dict.fromkeys(str(tolerance.of(array.dtype)) for array in outputs.values() if is_inexact(array))
    return {"Allowed difference": "; ".join(allowed)} if allowed else {}


def golden_notes(target: "Target", measured: "Measured") -> tuple[str, ...]:
    """What a reader must know of the comparisons."""
    from tpuserve_loadtests.golden.golden_answers import GoldenAnswers

    checked = [line for line in target.workload.lines if line.golden]
    notes = [
        f"{line.name}: every request has the same golden answer: if answers were mixed up, nobody could tell"
        for line in checked
        if GoldenAnswers(line.golden, target.checks.tolerance(line)).are_alike()
    ]
    if checked and not measured.total.checked:
        notes.append("no answer was compared with its golden one: a longer run, or a larger --check-share, would")
    return tuple(notes)


def _refuse_checks(given: Mapping[str, Any], gates: "tuple[Threshold, ...]") -> None:
    said = said_names(given)
    asking = [flag(name) for name in _OF_CHECKS if name in said] + [str(gate) for gate in gates if gate.is_of_checks]
    if asking:
        raise click.UsageError(f"{asking[0]} needs right answers to compare with: give --golden")


def _recorded(target: "Target") -> "Target":
    from tpuserve_loadtests.traffic.golden_recording import NotRecorded, record_golden

    requests = sum(len(line.exchanges) for line in target.workload.lines)
    label = f"Recording {requests:,} golden answers, one at a time"
    signatures = {line.name: _signature(target, line.name) for line in target.workload.lines}
    try:
        # Off a terminal it prints its label alone.
        with click.progressbar(length=requests, label=label, file=sys.stderr, width=0) as bar:
            return record_golden(target, signatures, lambda: bar.update(1))
    except NotRecorded as error:
        click.echo(f"Error: golden answers cannot be recorded: {error}", err=True)
        sys.exit(EXIT_FAILED)


def _signature(target: "Target", name: str) -> "Signature":
    line = next(line for line in target.workload.lines if line.name == name)
    with target.access.client(target.addresses[line.protocol], PROBE_TIMEOUT_S) as client:
        metadata = client.metadata(line.spec.name, version=line.spec.version, label=line.spec.label)
        return metadata.signature(line.signature_name)
