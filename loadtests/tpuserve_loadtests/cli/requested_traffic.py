"""Requested traffic: the options' model, or the models of a scenario file."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import click

from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.cli import access, loads, targets
from tpuserve_loadtests.cli.command import refused, with_values
from tpuserve_loadtests.cli.golden import with_checks
from tpuserve_loadtests.cli.options import (
    LoadOptions,
    MeasuredServerOptions,
    RequestOptions,
)
from tpuserve_loadtests.cli.scenario import BadScenario, Part, Scenario, read_scenario
from tpuserve_loadtests.judgement.threshold import Lines, Threshold
from tpuserve_loadtests.requests.protocols import TITLES, Port, of_port
from tpuserve_loadtests.requests.protocols import Protocol as Wire
from tpuserve_loadtests.requests.recording import BadRecording, Timeline, merged_timeline
from tpuserve_loadtests.requests.workload import MAX_REQUESTS_BYTES, Line, Workload, mixed_order, simplified
from tpuserve_loadtests.traffic.target import Target

# Options for a single model. In a scenario, each model sets these values itself.
_OF_ONE_MODEL: Final = (
    "version",
    "label",
    "signature_name",
    "rows",
    "lengths",
    "input_file",
    "prompts",
    "recorded",
    "recorded_model",
)


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    name: str
    spec: ModelSpec
    requests: targets.Requests
    protocols: tuple[Wire, ...]
    weight: float
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestedTraffic:
    """The traffic that a command requests, with the title of its report.

    If it `is_mixed`, each user and arrival takes a line by weight. Otherwise, the lines share the users or arrivals
    evenly. `requests` has what the parts share. `explicit` names the values that the command line or the scenario sets.
    """

    title: str
    addresses: dict[Wire, str]
    requests: targets.Requests
    parts: tuple[ModelTraffic, ...]
    is_mixed: bool = False
    explicit: frozenset[str] = frozenset()

    @classmethod
    def of_model(
        cls,
        spec: ModelSpec,
        addresses: dict[Wire, str],
        requests: targets.Requests,
        explicit: Collection[str] = (),
    ) -> Self:
        """Return the traffic of one model, with a line for each address."""
        protocols = tuple(addresses)
        part = ModelTraffic(str(spec), spec, requests, protocols, 1.0, protocols)
        return cls(str(spec), addresses, requests, (part,), explicit=frozenset(explicit))

    @property
    def least_users(self) -> int:
        """The minimum number of users of a closed load: one for each protocol of a single model."""
        return 1 if self.is_mixed else len(self.addresses)

    @property
    def specs(self) -> frozenset[ModelSpec]:
        return frozenset(part.spec for part in self.parts)

    def lines(self, target: Target, gates: Sequence[Threshold], steps: Sequence[str] = ()) -> Lines:
        """Return the lines that gates select. Raise a usage error for a gate that selects none of them."""
        counted = {line.name: line.counted_as() for line in target.workload.lines}
        named: dict[str, tuple[str, ...]] = {}
        words = target.workload.words()
        for part in self.parts:
            names = tuple(dict.fromkeys(name for line in part.lines for name in counted[line]))
            words |= {name: words[name] | {simplified(part.name)} for name in names}
            named |= {part.name: names, **{line: tuple(dict.fromkeys(counted[line])) for line in part.lines}}
        found = Lines(words, named)
        with refused(ValueError):
            found.check(gates, steps)
        return found

    def timeline(self, speed: float) -> Timeline | None:
        """Return the arrival times of the recorded requests, or None unless all requests are recorded.

        Raises a usage error if a recording has no times.
        """
        recordings = [(part.requests.recording_for(part.spec.name), len(part.protocols)) for part in self.parts]
        found = [(recording, lines) for recording, lines in recordings if recording is not None]
        if len(found) < len(recordings):
            return None
        with refused(BadRecording):
            return merged_timeline(found, speed)

    def echo_notes(self) -> Self:
        """Print the notes on the recorded requests, and return the traffic."""
        for part in self.parts:
            recording = part.requests.recording_for(part.spec.name)
            for note in recording.notes if recording else ():
                click.echo(f"Note: {note}", err=True)
        return self

    def find_target(self, timeline: Timeline | None = None, replicas: tuple[str, ...] = ()) -> Target:
        """Fetch the metadata of each model and build the requests. On failure, exit with a message.

        With a timeline, requests go to lines in its order. If there are `replicas`, requests go to those of their port.
        """
        lines: list[Line] = []
        shares: list[float] = []
        for part in self.parts:
            addresses = {protocol: self.addresses[protocol] for protocol in part.protocols}
            max_bytes = MAX_REQUESTS_BYTES // len(self.parts)
            lines += targets.find_lines(
                part.spec, addresses, part.requests, part.lines, max_bytes, replayed=timeline is not None
            )
            shares += [part.weight / len(part.lines)] * len(part.lines)
        targets.check_predictions(lines, self.addresses, self.requests.access)
        order = timeline.order if timeline else mixed_order(shares) if self.is_mixed else ()
        options = self.requests.options
        target = Target(
            Workload(tuple(lines), order),
            self.addresses,
            options.timeout,
            access=self.requests.access,
            replicas=replicas,
            connections=options.connections,
        )
        paths = {line: part.requests.options.golden.path for part in self.parts for line in part.lines}
        return with_checks(target, options.golden, paths)


_Options = TypeVar("_Options", bound=LoadOptions)


def find_traffic(
    options: _Options, *, own_load: bool = False, explicit: Collection[str] | None = None
) -> tuple[RequestedTraffic, _Options]:
    """Read MODEL or --scenario, and merge the scenario's values into the options.

    With `own_load`, the command ignores the scenario's users, rate and trace.
    `explicit` names the options that override the scenario's values. By default, these are the options on click's
    command line.
    Raises usage errors. Sends no request to the server.
    """
    models = options.models
    explicit = access.explicit_names() if explicit is None else explicit
    if models.scenario is None:
        if models.model is None:
            raise click.UsageError("Missing MODEL. Set the model's name, or --scenario.")
        options = _with_address(options)
        server = options.server
        addresses = access.find_addresses(server.protocol, server.grpc_address, server.rest_url)
        spec = targets.find_spec(models.model, options.version.version, options.version.label)
        requests = targets.Requests.of(options.requests, access.find_access(server.access))
        return RequestedTraffic.of_model(spec, addresses, requests, explicit).echo_notes(), options
    if models.model is not None:
        raise click.UsageError(f"--scenario names the models. Omit {models.model!r}.")
    scenario = _read(models.scenario)
    if options.requests.golden.path is not None:
        raise click.UsageError(
            "A scenario sets golden files by model (golden:). With --scenario, --golden accepts no PATH."
        )
    for name in _OF_ONE_MODEL:
        if getattr(options.version if name in ("version", "label") else options.requests, name):
            raise click.UsageError(f"A scenario sets this value for each model. Omit {access.flag(name)}.")
    options = _merged(options, scenario.settings, explicit, own_load)
    options = _with_address(options)
    traffic = _scenario_traffic(scenario, models.scenario, options.server, options.requests)
    return replace(traffic.echo_notes(), explicit=frozenset((*explicit, *scenario.settings))), options


def _with_address(options: _Options) -> _Options:
    return replace(options, server=access.with_address(options.server, options.server.protocol))


def _read(path: Path) -> Scenario:
    with refused(BadScenario):
        return read_scenario(path)


def _merged(options: _Options, settings: Mapping[str, Any], explicit: Collection[str], own_load: bool) -> _Options:
    # A load option on the command line replaces every load setting of the file.
    hidden = {
        *explicit,
        *((*loads.WAYS, *loads.OF_WAYS) if own_load or not set(loads.WAYS).isdisjoint(explicit) else ()),
    }
    return with_values(options, {name: value for name, value in settings.items() if name not in hidden})


def _scenario_traffic(
    scenario: Scenario, path: Path, server: MeasuredServerOptions, options: RequestOptions
) -> RequestedTraffic:
    addresses = access.find_addresses(server.protocol, server.grpc_address, server.rest_url)
    credentials = access.find_access(server.access)
    parts = tuple(_model_traffic(part, addresses, options, credentials) for part in scenario.parts)
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"{path}: Several models have the name {name!r}. Set a different name for each.")
    used = {
        protocol: address
        for protocol, address in addresses.items()
        if any(protocol in part.protocols for part in parts)
    }
    return RequestedTraffic(scenario.title, used, targets.Requests(options, credentials), parts, is_mixed=True)


def _model_traffic(
    part: Part, addresses: Mapping[Wire, str], options: RequestOptions, credentials: Access
) -> ModelTraffic:
    spec = targets.find_spec(part.model, part.version, part.label)
    golden = replace(options.golden, golden=part.golden) if part.golden else options.golden
    requests = targets.Requests.of(replace(options, **part.requests, golden=golden), credentials)
    name, protocols = part.name or str(spec), tuple(_protocol_of(port, addresses, spec) for port in part.ports)
    protocols = protocols or tuple(addresses)
    lines = tuple(f"{name} {TITLES[protocol]}" for protocol in protocols)
    return ModelTraffic(name, spec, requests, protocols, part.weight, lines)


def _protocol_of(port: Port, addresses: Mapping[Wire, str], spec: ModelSpec) -> Wire:
    protocol = of_port(addresses, port)
    if protocol is None:
        raise click.UsageError(
            f"{spec} uses {port}, but no {port} address is set. Set --{port}, or add it to Locust's --host."
        )
    return protocol
