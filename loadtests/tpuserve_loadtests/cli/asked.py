"""What a command was asked to send: one model as its options say, or the models of a scenario file."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tpuserve_loadtests.cli.access import find_access
from tpuserve_loadtests.cli.addresses import find_addresses, with_address
from tpuserve_loadtests.cli.loads import WAYS
from tpuserve_loadtests.cli.said import flag, said_names
from tpuserve_loadtests.cli.target import Requests, find_lines, find_spec, find_target, read_recording
from tpuserve_loadtests.cli.tolerances import find_tolerances

if TYPE_CHECKING:
    from tpuserve_client.model import ModelSpec
    from tpuserve_loadtests.access import Access
    from tpuserve_loadtests.recording.timeline import Timeline
    from tpuserve_loadtests.scenario import Part, Scenario
    from tpuserve_loadtests.traffic.engine import Target
    from tpuserve_loadtests.workload import Line, Protocol

# Options of one model, which a scenario's models have of their own.
_OF_ONE_MODEL: Final = (
    "version",
    "label",
    "signature_name",
    "rows",
    "lengths",
    "input_file",
    "recorded",
    "recorded_model",
)
# Keys of a scenario that are called otherwise among the options' values.
_OPTIONS: Final = {
    "grpc": "grpc_address",
    "rest": "rest_url",
    "trace": "trace_file",
    "arrivals": "process",
    "fail_if": "gates",
    "slo": "objectives",
}


@dataclass(frozen=True, slots=True)
class Sent:
    """One model's part of what is sent: its requests, their protocols and lines, and its weight among others."""

    name: str
    spec: "ModelSpec"
    requests: Requests
    protocols: "tuple[Protocol, ...]"
    weight: float
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """`title` is the report's. No `parts`: one model, `spec`, over every address."""

    title: str
    addresses: "dict[Protocol, str]"
    requests: Requests
    spec: "ModelSpec | None"
    parts: tuple[Sent, ...] = ()

    @property
    def least_users(self) -> int:
        """How many users a closed load needs: one for each protocol of a model that is alone."""
        return 1 if self.parts else len(self.addresses)

    @property
    def _all_parts(self) -> tuple[Sent, ...]:
        if self.spec is None:
            return self.parts
        protocols = tuple(self.addresses)
        return (Sent(str(self.spec), self.spec, self.requests, protocols, 1.0, protocols),)

    @property
    def specs(self) -> "frozenset[ModelSpec]":
        """The models that are asked."""
        return frozenset({part.spec for part in self.parts} if self.spec is None else {self.spec})

    def timeline(self, speed: float) -> "Timeline | None":
        """When recorded requests came; None where not all that is sent is recorded. A usage error for missing times."""
        from tpuserve_loadtests.recording.recording import BadRecording
        from tpuserve_loadtests.recording.timeline import merged_timeline

        recordings = [(part.requests.recording_for(part.spec.name), len(part.protocols)) for part in self._all_parts]
        found = [(recording, lines) for recording, lines in recordings if recording is not None]
        if len(found) < len(recordings):
            return None
        try:
            return merged_timeline(found, speed)
        except BadRecording as error:
            raise click.UsageError(str(error)) from None

    def find_target(self, timeline: "Timeline | None" = None) -> "Target":
        """Ask the server for each model, and make the requests. Ends the program with a message where that fails.

        With a timeline, requests go to lines in its order.
        """
        from tpuserve_loadtests.encoding import MAX_REQUESTS_BYTES
        from tpuserve_loadtests.traffic.engine import Target
        from tpuserve_loadtests.workload import Workload, mixed_order

        for part in self._all_parts:
            _tell_notes(part)
        if self.spec is not None and timeline is None:
            return self._with_tolerances(find_target(self.spec, self.addresses, self.requests))
        lines: list[Line] = []
        shares: list[float] = []
        for part in self._all_parts:
            addresses = {protocol: self.addresses[protocol] for protocol in part.protocols}
            max_bytes = MAX_REQUESTS_BYTES // len(self._all_parts)
            lines += find_lines(
                part.spec, addresses, part.requests, part.lines, max_bytes, replayed=timeline is not None
            )
            shares += [part.weight / len(part.lines)] * len(part.lines)
        workload = Workload(tuple(lines), mixed_order(shares) if timeline is None else timeline.order)
        places = {str(each): address for each, address in self.addresses.items()}
        return self._with_tolerances(Target(workload, places, self.requests.timeout_s, access=self.requests.access))

    def _with_tolerances(self, target: "Target") -> "Target":
        """Add the tolerances of manifests for lines whose golden answers came from a file or a directory."""
        paths = {line: part.requests.golden for part in self._all_parts for line in part.lines}
        tolerances = find_tolerances(target, {name: path for name, path in paths.items() if path is not None})
        return replace(target, checks=replace(target.checks, tolerances=tolerances)) if tolerances else target


def find_asked(
    model: str | None, given: dict[str, Any], *, own_load: bool = False, said: Collection[str] | None = None
) -> tuple[Asked, dict[str, Any]]:
    """From MODEL or --scenario, and the options' values with the scenario's among them. Usage errors; asks no server.

    `own_load`: the command has loads of its own, whatever users or rate the scenario names. `said`: names of values
    that go before the scenario's; those of click's command line unless told.
    """
    if given["scenario"] is None:
        if model is None:
            raise click.UsageError("name the MODEL, or give a --scenario")
        given = with_address(given)
        addresses = find_addresses(given["protocol"], given["grpc_address"], given["rest_url"])
        spec = find_spec(model, given["version"], given["label"])
        return Asked(str(spec), addresses, Requests.given(given), spec), given
    if model is not None:
        raise click.UsageError(f"a scenario names its models: {model!r} and --scenario do not go together")
    scenario = _read(given["scenario"])
    if isinstance(given.get("golden"), Path):
        raise click.UsageError("a scenario's models have golden files of their own (golden:); --golden takes record")
    for name in _OF_ONE_MODEL:
        if given[name]:
            raise click.UsageError(f"a scenario says this of each of its models: {flag(name)} does not go with it")
    given = with_address(_merged(given, scenario.settings, said_names(given) if said is None else said, own_load))
    return _asked(scenario, given), given


def _read(path: Path) -> "Scenario":
    from tpuserve_loadtests.scenario import BadScenario, read_scenario

    try:
        return read_scenario(path)
    except BadScenario as error:
        raise click.UsageError(str(error)) from None


def _merged(
    given: dict[str, Any], settings: Mapping[str, Any], said: Collection[str], own_load: bool
) -> dict[str, Any]:
    """What the command line does not say is as in the file."""
    # One way to say what the load is takes the place of the file's.
    hidden = {*said, *(WAYS if own_load or not set(WAYS).isdisjoint(said) else ())}
    named = {_OPTIONS.get(key, key): value for key, value in settings.items()}
    return {**given, **{name: value for name, value in named.items() if name in given and name not in hidden}}


def _asked(scenario: "Scenario", given: Mapping[str, Any]) -> Asked:
    addresses = find_addresses(given["protocol"], given["grpc_address"], given["rest_url"])
    access = find_access(given)
    parts = tuple(_sent(part, addresses, given["timeout"], access) for part in scenario.parts)
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"{given['scenario']}: several models are called {name!r}: give each a name")
    used = {
        protocol: address
        for protocol, address in addresses.items()
        if any(protocol in part.protocols for part in parts)
    }
    return Asked(scenario.title, used, parts[0].requests, None, parts)


def _sent(part: "Part", addresses: "Mapping[Protocol, str]", timeout_s: float, access: "Access") -> Sent:
    spec = find_spec(part.model, part.version, part.label)
    missing = [protocol for protocol in part.protocols if protocol not in addresses]
    if missing:
        raise click.UsageError(
            f"{spec} is to be asked over {missing[0]}, of which there is no address: give --{missing[0]}"
        )
    recording = read_recording(part.recorded) if part.recorded else None
    requests = Requests(
        part.rows,
        part.lengths,
        part.input,
        part.signature,
        timeout_s,
        access,
        part.golden,
        recording,
        part.recorded_model,
    )
    name, protocols = part.name or str(spec), part.protocols or tuple(addresses)
    lines = tuple(f"{name} {'gRPC' if protocol == 'grpc' else 'REST'}" for protocol in protocols)
    return Sent(name, spec, requests, protocols, part.weight, lines)


def _tell_notes(part: Sent) -> None:
    recording = part.requests.recording_for(part.spec.name)
    for note in recording.notes if recording else ():
        click.echo(f"Note: {note}", err=True)
