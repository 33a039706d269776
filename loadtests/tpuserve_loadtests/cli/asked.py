"""What a command was asked to send: one model as its options say, or the models of a scenario file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from tpuserve_loadtests.cli.target import Requests, find_addresses, find_lines, find_spec, find_target

if TYPE_CHECKING:
    from tpuserve_client.model import ModelSpec
    from tpuserve_loadtests.scenario import Part, Scenario
    from tpuserve_loadtests.traffic.engine import Target
    from tpuserve_loadtests.workload import Line, Protocol

# Options of one model, which a scenario's models have of their own.
_OF_ONE_MODEL: Final = ("version", "label", "signature_name", "rows", "lengths", "input_file")
# Ways to say what the load is: one on the command line takes the place of the file's.
_WAYS: Final = ("users", "rate", "trace_file")
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
    """One model's part of what is sent: its requests, over which protocols, and its weight among others."""

    name: str
    spec: "ModelSpec"
    requests: Requests
    protocols: "tuple[Protocol, ...]"
    weight: float


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
    def specs(self) -> "frozenset[ModelSpec]":
        """The models that are asked."""
        return frozenset({part.spec for part in self.parts} if self.spec is None else {self.spec})

    def find_target(self) -> "Target":
        """Ask the server for each model, and make the requests. Ends the program with a message where that fails."""
        if self.spec is not None:
            return find_target(self.spec, self.addresses, self.requests)
        return self._mixed_target()

    def _mixed_target(self) -> "Target":
        from tpuserve_loadtests.encoding import MAX_REQUESTS_BYTES
        from tpuserve_loadtests.traffic.engine import Target
        from tpuserve_loadtests.workload import Workload, mixed_order

        lines: list[Line] = []
        shares: list[float] = []
        for part in self.parts:
            addresses = {protocol: self.addresses[protocol] for protocol in part.protocols}
            names = [f"{part.name} {'gRPC' if protocol == 'grpc' else 'REST'}" for protocol in part.protocols]
            max_bytes = MAX_REQUESTS_BYTES // len(self.parts)
            lines += find_lines(part.spec, addresses, part.requests, names, max_bytes)
            shares += [part.weight / len(names)] * len(names)
        workload = Workload(tuple(lines), mixed_order(shares))
        return Target(
            workload, {str(each): address for each, address in self.addresses.items()}, self.requests.timeout_s
        )


def find_asked(model: str | None, given: dict[str, Any], *, own_load: bool = False) -> tuple[Asked, dict[str, Any]]:
    """From MODEL or --scenario, and the options' values with the scenario's among them. Usage errors; asks no server.

    `own_load`: the command has loads of its own, whatever users or rate the scenario names.
    """
    if given["scenario"] is None:
        if model is None:
            raise click.UsageError("name the MODEL, or give a --scenario")
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
            raise click.UsageError(f"a scenario says this of each of its models: {_flag(name)} does not go with it")
    given = _merged(given, scenario.settings, own_load)
    return _asked(scenario, given), given


def _read(path: Path) -> "Scenario":
    from tpuserve_loadtests.scenario import BadScenario, read_scenario

    try:
        return read_scenario(path)
    except BadScenario as error:
        raise click.UsageError(str(error)) from None


def _merged(given: dict[str, Any], settings: Mapping[str, Any], own_load: bool) -> dict[str, Any]:
    """What the command line does not say is as in the file."""
    context = click.get_current_context()
    said = {name for name in given if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    hidden = said.union(_WAYS if own_load or said.intersection(_WAYS) else ())
    named = {_OPTIONS.get(key, key): value for key, value in settings.items()}
    return {**given, **{name: value for name, value in named.items() if name in given and name not in hidden}}


def _asked(scenario: "Scenario", given: Mapping[str, Any]) -> Asked:
    addresses = find_addresses(given["protocol"], given["grpc_address"], given["rest_url"])
    parts = tuple(_sent(part, addresses, given["timeout"]) for part in scenario.parts)
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


def _sent(part: "Part", addresses: "Mapping[Protocol, str]", timeout_s: float) -> Sent:
    spec = find_spec(part.model, part.version, part.label)
    missing = [protocol for protocol in part.protocols if protocol not in addresses]
    if missing:
        raise click.UsageError(
            f"{spec} is to be asked over {missing[0]}, of which there is no address: give --{missing[0]}"
        )
    requests = Requests(part.rows, part.lengths, part.input, part.signature, timeout_s, part.golden)
    return Sent(part.name or str(spec), spec, requests, part.protocols or tuple(addresses), part.weight)


def _flag(name: str) -> str:
    return {"signature_name": "--signature", "input_file": "--input", "lengths": "--length"}.get(name, f"--{name}")
