"""The servers of `tpuserve rollout`: their addresses, the source of their configuration, and the checks before it.

`rollout_kserve` opens those of an InferenceService.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

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
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.cli import access, monitoring, targets
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.options import AUTO, DEFAULT_REST, OFF, AccessOptions
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.monitoring.metrics_page import NoPage
from tpuserve_loadtests.requests.protocols import (
    OIP,
    TITLES,
    Protocol,
    is_oip,
    port_of,
    protocol_of,
    without_prefix,
)
from tpuserve_loadtests.rollout.labels import Apply, Labels
from tpuserve_loadtests.rollout.model_config_text import BadConfig
from tpuserve_loadtests.rollout.model_service import ModelService
from tpuserve_loadtests.rollout.moves import Move, Observed
from tpuserve_loadtests.rollout.replicas import MissingReplica, Place, Replicas, named
from tpuserve_loadtests.rollout.sources import CommittedFile, ConfigFile, ConfigMapKey, Source
from tpuserve_loadtests.rollout.user_requests import Usage, UserRequests

_FILE_SOURCES: Final = {"file": ConfigFile, "git-patch": CommittedFile}
_CONFIG_MAP: Final = "configmap"


@dataclass(frozen=True, slots=True)
class Side:
    """One version, or what a label serves, with the server at `address`. Loads use `addresses`, by protocol."""

    spec: ModelSpec
    address: str
    service: ModelService
    addresses: Mapping[Protocol, str]

    @property
    def protocols(self) -> dict[Protocol, str]:
        """The addresses by protocol. The Open Inference Protocol has no labels, so only versions use it."""
        return {each: address for each, address in self.addresses.items() if not (is_oip(each) and self.spec.label)}


@dataclass(frozen=True, slots=True)
class Stage:
    """Both versions, what the canary serves, what users request, and the mover between them.

    `where` names the servers in messages. `replicas` returns the addresses of all of them, of both ports. If
    `is_spread`, every load takes turns among them. Otherwise, it uses a side's addresses. `usage` lists the APIs that
    users call, and is None if they are unknown.
    """

    live: Side
    new: Side
    canary: Side
    users: Side
    mover: Observed
    moves: Sequence[Move]
    where: str
    user_requests: UserRequests
    usage: Sequence[Usage] | None = None
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


def find_places(options: RolloutOptions) -> tuple[list[Place], list[Place]]:
    """Parse --replicas, and return the gRPC ports and the REST ports. Raises usage errors."""
    found: dict[str, list[Place]] = {"grpc": [], "rest": []}
    for text in options.replicas:
        with refused(ValueError, hint="--replicas"):
            place = Place.parse(text)
        protocol = access.parse_protocol(place.address, "--replicas")
        if protocol not in found:
            raise click.BadParameter(
                f"expected HOST:PORT or dns:NAME:PORT of the gRPC port, or with http:// of the REST port; received "
                f"{text!r}",
                param_hint="--replicas",
            )
        found[protocol].append(place)
    if found["rest"] and not found["grpc"]:
        raise click.BadParameter(
            "expected HOST:PORT or dns:NAME:PORT of the gRPC port, too, because labels move over it",
            param_hint="--replicas",
        )
    return found["grpc"], found["rest"]


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


def _with_addresses(
    options: RolloutOptions, places: Sequence[Place], rest_places: Sequence[Place]
) -> tuple[RolloutOptions, bool]:
    """Fill in the server's addresses. Return the options, and whether the addresses are those of the first replica.

    By default, use both protocols on localhost. TPUSERVE_ADDRESS names the server whose labels move, so --rest does not
    replace it.
    """
    server = options.server
    secure = [place for place in (*places, *rest_places) if place.is_dns and place.is_secure]
    if secure and server.access.tls_server_name is None:
        # The certificate of a replica is for the name, and not for its address.
        server = replace(server, access=replace(server.access, tls_server_name=secure[0].name))
    given = access.with_address(replace(server, rest_url=None), "grpc").grpc_address
    first = _first_address(places, server.access) if given is None and places else given
    rest_url = server.rest_url
    if rest_url is None and rest_places:
        rest_url = _first_address(rest_places, server.access)
    elif rest_url is None and first is None:
        rest_url = DEFAULT_REST
    server = replace(server, grpc_address=find_grpc_address(first), rest_url=rest_url)
    return replace(options, server=server), bool(places) and given is None


def _first_address(places: Sequence[Place], credentials: AccessOptions) -> str:
    found = [address for place in places for address in place.addresses()]
    if not found:
        targets.end_unreachable(places[0].name, access.find_access(credentials), "the name has no address")
    return found[0]


def find_grpc_address(text: str | None) -> str:
    """Return the gRPC address, or the default. Raises a usage error for another protocol."""
    ((protocol, address),) = access.find_addresses("grpc", text, None).items()
    if is_oip(protocol):
        raise click.UsageError(
            f"{address} selects the Open Inference Protocol, which has no labels to move. Set --grpc HOST:PORT."
        )
    return address


def open_servers(
    stack: ExitStack, options: RolloutOptions, interrupted: Callable[[], bool]
) -> tuple[RolloutOptions, Stage]:
    """Connect to the servers, and check them and their labels. Return the options with the servers' addresses.

    A move of the labels stops to wait when `interrupted`. Raises usage errors.
    """
    places, rest_places = find_places(options)
    options, is_spread = _with_addresses(options, places, rest_places)
    access.refuse_ineffective(options, options.metrics, *(place.address for place in (*places, *rest_places)))
    address, model = str(options.server.grpc_address), options.model
    credentials = access.find_access(options.server.access)
    control = access.find_control_access(options.server.access, options.control_api_key_file)

    def connect(place: str) -> ModelService:
        return ModelService(place, credentials, targets.PROBE_TIMEOUT_S, options.patience, control)

    with refused(InvalidArgument):
        service = stack.enter_context(connect(address))
        replicas = stack.enter_context(Replicas(places or [Place(address)], connect, options.allow_missing))
        replicas.services()
    labels, live = _open_labels(options, replicas, interrupted)
    _check_credentials(options, live, replicas)
    rest = RestPorts(options, rest_places)
    user_requests = UserRequests(model, lambda: rest.pages(len(replicas.services())), rest.access_of_page)
    known = user_requests.usage()
    usage, addresses = _with_used(options, known or [])
    rest.check(len(replicas.services()), addresses)
    specs = (
        targets.find_spec(model, live, None),
        targets.find_spec(model, options.new, None),
        targets.find_spec(model, None, options.canary),
        targets.find_spec(model, None, options.stable),
    )
    old, new, canary, users = (Side(each, address, service, addresses) for each in specs)
    return options, Stage(
        old,
        new,
        canary,
        users,
        labels,
        labels.moves((options.canary, options.stable), options.new),
        _where(address, tuple(replicas.services()), is_spread=is_spread),
        user_requests,
        None if known is None else usage,
        lambda: (*replicas.responding(model), *rest.responding()),
        is_spread,
    )


def _where(address: str, replicas: Sequence[str], *, is_spread: bool) -> str:
    if len(replicas) == 1:
        return address
    through = "" if is_spread else f"{address}, with "
    return f"{through}{counted(len(replicas), 'replica')}: {', '.join(replicas)}"


@dataclass(frozen=True, slots=True)
class RestPorts:
    """The REST ports of the replicas. `options` have the address of REST, which is the only one without `places`."""

    options: RolloutOptions
    places: Sequence[Place]

    def addresses(self) -> list[str]:
        """Return the addresses now. Blocks for DNS."""
        url = self.options.server.rest_url
        return [each for place in self.places for each in place.addresses()] or ([] if url is None else [url])

    def responding(self) -> list[str]:
        """Return the addresses of `places` that respond. Raises MissingReplica if more are missing than may be."""
        found, missing = [], []
        for address in self.addresses() if self.places else ():
            try:
                with access.find_access(self.options.server.access).client(address, targets.PROBE_TIMEOUT_S) as client:
                    client.status(self.options.model)
                found.append(address)
            except (Unavailable, DeadlineExceeded) as error:
                missing.append(MissingReplica(address, error.message))
        if len(missing) > self.options.allow_missing:
            raise missing[0]
        return found

    def check(self, replicas: int, loaded: Iterable[Protocol]) -> None:
        """Raise a usage error if the loads use REST, and cannot reach each replica over it."""
        known = len(self.addresses())
        if known < replicas and any(port_of(protocol) == "rest" for protocol in loaded):
            raise click.UsageError(
                f"The loads use REST, and {known} of {replicas} replicas have a known REST address. Name that of each "
                "replica with --replicas http://HOST:PORT or dns:http://NAME:PORT."
            )

    def pages(self, replicas: int) -> list[str]:
        """Return the metrics pages. Raises NoPage if they are not those of all replicas."""
        choice = self.options.metrics
        if choice == OFF:
            raise NoPage("--server-metrics is off")
        found = [choice] if choice != AUTO else [monitoring.page_url(each) for each in self.addresses()]
        if len(found) < replicas:
            raise NoPage(f"{len(found)} of {counted(replicas, 'replica')} have a known metrics page")
        return found

    def access_of_page(self, url: str) -> Access:
        credentials = access.find_access(self.options.server.access)
        if self.options.metrics == AUTO:
            return credentials
        return monitoring.page_access(credentials, url, self.options.server)


def _with_used(options: RolloutOptions, usage: Sequence[Usage]) -> tuple[list[Usage], dict[Protocol, str]]:
    """Return the usage, and the addresses of protocols that the options name or that users use.

    Raises a usage error if users use REST, and its address is unknown.
    """
    server = options.server
    found = access.find_addresses("both" if server.rest_url else "grpc", server.grpc_address, server.rest_url)
    shown: list[Usage] = []
    for each in usage:
        # The pages do not distinguish the forms of tensors.
        is_json = each.protocol == "oip_http" and "oip_json" in found
        one = replace(each, api=TITLES["oip_json"], protocol="oip_json") if is_json else each
        shown.append(one)
        if one.protocol is None or one.protocol in found:
            continue
        url = server.grpc_address if port_of(one.protocol) == "grpc" else server.rest_url
        if url is None:
            words = f"Users call {options.model} over {one.api} ({counted(one.requests, 'request')})."
            raise click.UsageError(f"{words} Set its address with --rest, or --server-metrics off to ignore it.")
        found[one.protocol] = _of_protocol(one.protocol, without_prefix(url))
    return shown, found


def _of_protocol(protocol: Protocol, address: str) -> str:
    """Return an address without prefix in the client's form for a protocol."""
    if not is_oip(protocol):
        return address
    return f"{OIP}{address if '://' in address else f'grpc://{address}'}"


def _open_labels(options: RolloutOptions, replicas: Replicas, interrupted: Callable[[], bool]) -> tuple[Labels, int]:
    """Return the labels and the live version.

    Raises usage errors if file and servers disagree on the labels, or if a version is unavailable.
    """
    model, stable, new, source = options.model, options.stable, options.new, find_source(options)
    address = str(options.server.grpc_address)
    hint = "--source" if options.config_file is None else "--model_config_file"
    try:
        labels = Labels(source, model, replicas, find_apply(options), options.patience, warn, interrupted)
        there = labels.config.labels(model)
        services = replicas.responding(model)
        available = {address: service.available(model) for address, service in services.items()}
        labels.check()
    except BadConfig as error:
        raise click.BadParameter(f"{source}: {error}", param_hint=hint) from None
    except (Unavailable, DeadlineExceeded) as error:
        lost = error.replica if isinstance(error, MissingReplica) else address
        targets.end_unreachable(lost, access.find_access(options.server.access), error.message)
    except TpuserveError as error:
        raise click.UsageError(targets.refusal(address, error, "read")) from None
    if stable not in there:
        has = ", ".join(sorted(there)) or "none"
        raise click.UsageError(f"{source}: Model {model} has no label {stable} to move. Its labels: {has}.")
    if there[stable] == new:
        raise click.UsageError(f"Version {new} is already live: label {stable} points to it.")
    for place, versions in available.items():
        if new not in versions:
            words = f"Version {new} of {model} is not available (available: {', '.join(map(str, versions))})"
            advice = "Add it to the model_version_policy."
            raise click.BadParameter(f"{named(place, words, services)}. {advice}", param_hint="--to")
    return labels, there[stable]


def _check_credentials(options: RolloutOptions, live: int, replicas: Replicas) -> None:
    """Raise a usage error if a server refuses predictions or reloads, before a load runs for nothing."""
    services = replicas.responding(options.model)
    if find_apply(options) == "reload":
        for address, service in services.items():
            try:
                service.check_control()
            except (PermissionDenied, Unauthenticated) as error:
                raise click.UsageError(targets.refusal(address, error, "control")) from None
    credentials = access.find_access(options.server.access)
    spec = targets.find_spec(options.model, live, None)
    for address in dict.fromkeys((*services, str(options.server.grpc_address))):
        targets.check_prediction(spec, protocol_of(address), address, credentials)
