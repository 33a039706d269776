"""The servers of `tpuserve rollout`: their addresses, the source of their configuration, and the checks before it.

`rollout_kserve` opens those of an InferenceService.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final, Self

import click

from tpuserve_client.errors import (
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    TpuserveError,
    Unauthenticated,
    Unavailable,
)
from tpuserve_client.model import ModelSpec
from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli import access, targets
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.options import DEFAULT_REST
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.requests.protocols import Protocol, is_oip, port_of, protocol_of
from tpuserve_loadtests.rollout.labels import Apply, Labels
from tpuserve_loadtests.rollout.model_config_text import BadConfig
from tpuserve_loadtests.rollout.model_service import ModelService
from tpuserve_loadtests.rollout.moves import Move, Observed
from tpuserve_loadtests.rollout.replicas import MissingReplica, Place, Replicas, named
from tpuserve_loadtests.rollout.sources import CommittedFile, ConfigFile, ConfigMapKey, Source

_FILE_SOURCES: Final = {"file": ConfigFile, "git-patch": CommittedFile}
_CONFIG_MAP: Final = "configmap"


@dataclass(frozen=True, slots=True)
class Side:
    """One version, or what a label serves, with the server that answers for it. Loads use `rest_url`, too, if given."""

    spec: ModelSpec
    address: str
    service: ModelService
    rest_url: str | None = None

    @property
    def protocols(self) -> dict[Protocol, str]:
        """The addresses by protocol. The Open Inference Protocol has no labels, so only versions use it."""
        chosen = "both" if self.rest_url else "grpc"
        found = access.find_addresses(chosen, self.address, self.rest_url)
        return {each: address for each, address in found.items() if not (is_oip(each) and self.spec.label)}


@dataclass(frozen=True, slots=True)
class Stage:
    """Both versions, what the canary serves, what users request, and the mover between them.

    `where` names the servers in messages. `replicas` returns all of them. If `is_spread`, every load takes turns among
    them. Otherwise, it uses a side's address.
    """

    live: Side
    new: Side
    canary: Side
    users: Side
    mover: Observed
    moves: Sequence[Move]
    where: str
    replicas: Callable[[], tuple[str, ...]] = tuple
    is_spread: bool = False

    @property
    def before(self) -> dict[str, int | None]:
        """The values before the moves."""
        return {move.key: move.now for move in reversed(self.moves)}

    @property
    def goal(self) -> Mapping[str, int | None]:
        """What users get after the moves."""
        return {self.moves[-1].key: self.moves[-1].then}

    @property
    def midway(self) -> Mapping[str, int | None]:
        """What the servers have before the last move."""
        return {self.moves[-1].key: self.moves[-1].now, **{move.key: move.then for move in self.moves[:-1]}}


def warn(words: str) -> None:
    """Print a warning. A closed terminal must not prevent the labels' return."""
    with suppress(OSError):
        click.echo(f"  {words[:1].upper()}{words[1:]}", err=True)


def find_places(options: RolloutOptions) -> list[Place]:
    """Parse --replicas. Raises usage errors."""
    found = []
    for text in options.replicas:
        with refused(ValueError, hint="--replicas"):
            place = Place.parse(text)
        protocol = access.parse_protocol(place.address, "--replicas")
        if port_of(protocol) != "grpc" or is_oip(protocol):
            raise click.BadParameter(
                f"expected HOST:PORT or dns:NAME:PORT of the gRPC port; received {text!r}", param_hint="--replicas"
            )
        found.append(place)
    return found


def find_source(options: RolloutOptions) -> Source:
    """Return the source of --source. Raises usage errors."""
    kind, _, name = options.source.partition(":")
    if options.source in _FILE_SOURCES:
        if options.config_file is None:
            raise click.UsageError(f"--source {kind} needs --model_config_file.")
        return _FILE_SOURCES[kind](options.config_file)
    parts = name.split("/")
    if kind != _CONFIG_MAP or len(parts) not in (2, 3) or not all(parts):
        raise click.BadParameter(
            "expected file, git-patch, configmap:NAMESPACE/NAME[/KEY] or kserve:NAMESPACE/NAME; received "
            f"{options.source!r}",
            param_hint="--source",
        )
    if options.config_file is not None:
        raise click.UsageError("--source configmap: and --model_config_file exclude each other. Omit one of them.")
    return ConfigMapKey(*parts)


def find_apply(options: RolloutOptions) -> Apply:
    """Return how the servers get a change. Raises a usage error for reloads of a source that is no file."""
    is_file = options.source == "file"
    if options.apply == "reload" and not is_file:
        raise click.UsageError(
            f"--apply reload needs --source file. The servers poll the source {options.source} themselves."
        )
    return options.apply or ("reload" if is_file else "poll")


def with_addresses(options: RolloutOptions) -> tuple[RolloutOptions, str, bool]:
    """Fill in the server's addresses. Return its gRPC address, and whether it is that of the first replica.

    By default, use both protocols on localhost. TPUSERVE_ADDRESS names the server whose labels move, so --rest does not
    replace it.
    """
    places = find_places(options)
    server = options.server
    secure = [place for place in places if place.is_dns and place.is_secure]
    if secure and server.access.tls_server_name is None:
        # The certificate of a replica is for the name, and not for its address.
        server = replace(server, access=replace(server.access, tls_server_name=secure[0].name))
    given = access.with_address(replace(server, rest_url=None), "grpc").grpc_address
    first = given
    if given is None and places:
        found = [address for place in places for address in place.addresses()]
        if not found:
            targets.end_unreachable(places[0].name, access.find_access(server.access), "the name has no address")
        first = found[0]
    address = find_grpc_address(first)
    rest_url = options.server.rest_url or (DEFAULT_REST if first is None else None)
    options = replace(options, server=replace(server, grpc_address=address, rest_url=rest_url))
    return options, address, bool(places) and given is None


def find_grpc_address(text: str | None) -> str:
    """Return the gRPC address, or the default. Raises a usage error for another protocol."""
    ((protocol, address),) = access.find_addresses("grpc", text, None).items()
    if is_oip(protocol):
        raise click.UsageError(
            f"{address} selects the Open Inference Protocol, which has no labels to move. Set --grpc HOST:PORT."
        )
    return address


@dataclass(frozen=True, slots=True)
class Servers:
    """The replicas, and the server at `address`: one of them, or their balancer, which `service` asks.

    `is_spread` is whether the loads go to every replica in turn, because the address is not a balancer's.
    """

    address: str
    service: ModelService
    replicas: Replicas
    model: str
    is_spread: bool

    @classmethod
    def open(cls, stack: ExitStack, options: RolloutOptions, address: str, *, is_spread: bool) -> Self:
        """Connect to the servers. Raises a usage error for keys that would cross the network in plaintext."""
        credentials = access.find_access(options.server.access)
        control = access.find_control_access(options.server.access, options.control_api_key_file)

        def connect(place: str) -> ModelService:
            return ModelService(place, credentials, targets.PROBE_TIMEOUT_S, options.patience, control)

        places = find_places(options) or [Place(address)]
        with refused(InvalidArgument):
            service = stack.enter_context(connect(address))
            replicas = stack.enter_context(Replicas(places, connect, options.allow_missing))
            replicas.services()
        return cls(address, service, replicas, options.model, is_spread)

    def __str__(self) -> str:
        replicas = self.replicas.services()
        if len(replicas) == 1:
            return self.address
        through = "" if self.is_spread else f"{self.address}, with "
        return f"{through}{counted(len(replicas), 'replica')}: {', '.join(replicas)}"

    def addresses(self) -> tuple[str, ...]:
        """Return the replicas that respond. Blocks."""
        return tuple(self.replicas.responding(self.model))

    def labels(self, options: RolloutOptions, interrupted: Callable[[], bool]) -> tuple[Labels, int]:
        """Return the labels and the live version. A move of the labels stops to wait when `interrupted`.

        Raises usage errors if file and servers disagree on the labels, or if a version is unavailable.
        """
        model, stable, new, source = self.model, options.stable, options.new, find_source(options)
        hint = "--source" if options.config_file is None else "--model_config_file"
        try:
            labels = Labels(source, model, self.replicas, find_apply(options), options.patience, warn, interrupted)
            there = labels.config.labels(model)
            services = self.replicas.responding(model)
            available = {address: service.available(model) for address, service in services.items()}
            labels.check()
        except BadConfig as error:
            raise click.BadParameter(f"{source}: {error}", param_hint=hint) from None
        except (Unavailable, DeadlineExceeded) as error:
            address = error.replica if isinstance(error, MissingReplica) else self.address
            targets.end_unreachable(address, access.find_access(options.server.access), error.message)
        except TpuserveError as error:
            raise click.UsageError(targets.refusal(self.address, error, "read")) from None
        if stable not in there:
            has = ", ".join(sorted(there)) or "none"
            raise click.UsageError(f"{source}: Model {model} has no label {stable} to move. Its labels: {has}.")
        if there[stable] == new:
            raise click.UsageError(f"Version {new} is already live: label {stable} points to it.")
        for address, versions in available.items():
            if new not in versions:
                words = f"Version {new} of {model} is not available (available: {', '.join(map(str, versions))})"
                advice = "Add it to the model_version_policy."
                raise click.BadParameter(f"{named(address, words, services)}. {advice}", param_hint="--to")
        return labels, there[stable]

    def stage(self, options: RolloutOptions, interrupted: Callable[[], bool]) -> Stage:
        """Return the stage of the labels. Raises usage errors like `labels` and `check_credentials`."""
        labels, live = self.labels(options, interrupted)
        self.check_credentials(live, options)
        specs = (
            targets.find_spec(self.model, live, None),
            targets.find_spec(self.model, options.new, None),
            targets.find_spec(self.model, None, options.canary),
            targets.find_spec(self.model, None, options.stable),
        )
        old, new, canary, users = (Side(each, self.address, self.service, options.server.rest_url) for each in specs)
        moves = labels.moves((options.canary, options.stable), options.new)
        return Stage(old, new, canary, users, labels, moves, str(self), self.addresses, self.is_spread)

    def check_credentials(self, live: int, options: RolloutOptions) -> None:
        """Raise a usage error if a server refuses predictions or reloads, before a load runs for nothing."""
        if find_apply(options) == "reload":
            for address, service in self.replicas.responding(self.model).items():
                try:
                    service.check_control()
                except (PermissionDenied, Unauthenticated) as error:
                    raise click.UsageError(targets.refusal(address, error, "control")) from None
        credentials = access.find_access(options.server.access)
        spec = targets.find_spec(self.model, live, None)
        for address in dict.fromkeys((*self.addresses(), self.address)):
            targets.check_prediction(spec, protocol_of(address), address, credentials)
