"""The option `--golden`: the expected answers, their tolerances, and the share of responses to compare with them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import click

from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli.options import AUTO, OFF, RECORD, GoldenOptions
from tpuserve_loadtests.golden.answers import CheckPlan, GoldenAnswers
from tpuserve_loadtests.golden.difference import Compared, Parity, differences, signature_difference
from tpuserve_loadtests.golden.tolerance import ANY_PRECISION, Precision, Tolerance, fetch_precision, read_precision
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.requests.workload import Line
from tpuserve_loadtests.traffic.senders import NotRecorded, record
from tpuserve_loadtests.traffic.target import Target


def with_checks(target: Target, options: GoldenOptions, paths: Mapping[str, Path | None]) -> Target:
    """Add the plan of checks to the target, and record golden answers. `paths` are the files of golden answers by line.

    By default, this records the responses to some requests of the lines without a file. Blocks, a few seconds at most.
    Exits with a message if a request of `--golden record` fails. Raises a usage error for options of comparisons if the
    target has no golden answers.
    """
    plan = CheckPlan(options.check_share)
    found: dict[str, Path | None] = {line.name: paths[line.name] for line in target.workload.lines if line.golden}
    if options.golden == RECORD:
        target, plan = _recorded(target, plan)
        found = dict.fromkeys(line.name for line in target.workload.lines)
    elif options.golden == AUTO:
        target, plan, notes = record(target, plan)
        found |= {line.name: None for line in target.workload.lines if line.golden and line.name not in found}
        for note in notes:
            click.echo(f"Note: {note}", err=True)
    elif options.golden == OFF and not found:
        limits = {
            "--check-share": options.check_share,
            "--atol": options.tolerance.atol,
            "--rtol": options.tolerance.rtol,
        }
        if flags := [flag for flag, value in limits.items() if value is not None]:
            raise click.UsageError(f"{flags[0]} needs golden responses. Omit --golden off.")
    atol, rtol = options.tolerance.atol, options.tolerance.rtol
    tolerances = {
        name: replace(
            each, atol=atol, rtol=rtol, versions=_known(each.versions, options.golden == AUTO and found[name] is None)
        )
        for name, each in find_tolerances(target, found).items()
    }
    return replace(target, checks=replace(plan, tolerances=tolerances))


def _known(versions: tuple[Precision | None, ...], is_auto: bool) -> tuple[Precision | None, ...]:
    """Return a wide limit in place of an unknown precision, so that rounding on a device causes no false alarm."""
    return tuple(each or ANY_PRECISION for each in versions) if is_auto else versions


def golden_notes(target: Target, measured: Measured) -> tuple[str, ...]:
    """Return notes on the limits of the comparisons."""
    checked = [line for line in target.workload.lines if line.golden]
    notes = []
    for line in checked:
        answers = GoldenAnswers(line.golden, target.checks.tolerance(line))
        if len(answers.numbers) > 1 and answers.are_alike():
            notes.append(
                f"{line.name}: all requests have the same golden response, so the comparison cannot detect mixed-up "
                "responses"
            )
        notes += islice(_lengths(line, answers), 1)
    if checked and not measured.total.checked:
        notes.append("no response was compared with its golden response; run longer, or increase --check-share")
    return tuple(notes)


def _lengths(line: Line, answers: GoldenAnswers) -> Iterator[str]:
    """Yield a note for each output with another first dimension than the rows of its request.

    The boxes of an image may have any number, but a model that returns no row at all looks the same.
    """
    for number in answers.numbers:
        for name, spec in line.expected(number).items():
            shape = answers.shape(number, name)
            if shape and spec.shape and spec.shape[0] not in (None, shape[0]):
                rows = counted(line.rows[number], "row")
                words = f"has the length {shape[0]} in the golden response to a request of {rows}"
                yield f"{line.name}: output {name!r} {words}"


def compare_recorded(a: Target, b: Target, options: GoldenOptions) -> Parity | None:
    """Compare the responses that B gave before the load with A's to the same requests.

    Return None if the sides share no protocol with responses of their own.
    """
    if options.golden not in (AUTO, RECORD):
        return None
    of_b = {line.protocol: line for line in b.workload.lines}
    pairs = [(line, of_b[line.protocol]) for line in a.workload.lines if line.protocol in of_b]
    found: list[Compared] = []
    for mine, theirs in pairs:
        if problem := signature_difference(mine.signature, theirs.signature):
            return Parity((), problem)
        tolerance = a.checks.tolerance(mine)
        tolerance = replace(tolerance, versions=(*tolerance.versions, *b.checks.tolerance(theirs).versions))
        found += differences({mine.protocol: mine.golden}, {mine.protocol: theirs.golden}, tolerance)
    return Parity(tuple(found)) if found else None


def _recorded(target: Target, plan: CheckPlan) -> tuple[Target, CheckPlan]:
    requests = sum(len(line.exchanges) for line in target.workload.lines)
    label = f"Recording {counted(requests, 'golden response')}, one at a time"
    try:
        # Without a terminal, the bar prints only its label.
        with click.progressbar(length=requests, label=label, file=sys.stderr, width=0) as bar:
            return record(target, plan, lambda: bar.update(1), repeated=0)[:2]
    except NotRecorded as error:
        click.echo(f"Error: Cannot record golden responses: {error}", err=True)
        sys.exit(EXIT_FAILED)


def find_tolerances(target: Target, golden: Mapping[str, Path | None]) -> dict[str, Tolerance]:
    """Return the tolerance of each line in `golden`, by name, from the served version and a version directory.

    `golden` maps a line to the path of its golden answers, or to None if the server itself recorded them. Sends the
    server one request for each version and protocol. Blocks.
    """
    lines = [line for line in target.workload.lines if line.name in golden]
    served = {}
    for protocol, spec in {(line.protocol, line.spec) for line in lines}:
        with closing(target.access.transport(target.addresses[protocol])) as transport:
            send = partial(transport.send, timeout_s=target.timeout_s)
            served[protocol, spec] = fetch_precision(send, protocol, spec)
    found = {}
    for line in lines:
        path = golden[line.name]
        of_golden = (read_precision(path),) if path is not None and path.is_dir() else ()
        found[line.name] = Tolerance(versions=(*of_golden, served[line.protocol, line.spec]))
    return found
