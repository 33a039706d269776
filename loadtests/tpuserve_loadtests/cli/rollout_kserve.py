"""The revisions of a KServe InferenceService as the servers of `tpuserve rollout`."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import click

from tpuserve_client.errors import DeadlineExceeded, InvalidArgument, TpuserveError, Unavailable
from tpuserve_loadtests.cli import access, targets
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.cli.rollout_servers import Side, Stage, find_grpc_address, warn
from tpuserve_loadtests.monitoring.metrics_page import NoPage
from tpuserve_loadtests.requests.protocols import protocol_of
from tpuserve_loadtests.rollout.canary_traffic import Traffic
from tpuserve_loadtests.rollout.model_config_text import BadConfig
from tpuserve_loadtests.rollout.model_service import ModelService
from tpuserve_loadtests.rollout.user_requests import UserRequests

_KIND: Final = "kserve:"
_HINT: Final = "--source"
# Options of configurations and labels, by the names of their values.
_OF_LABELS: Final = {
    "config_file": "--model_config_file",
    "apply": "--apply",
    "replicas": "--replicas",
    "allow_missing": "--allow-missing",
    "stable": "--stable",
    "canary": "--canary",
    "control_api_key_file": "--control-api-key-file",
}


def is_kserve(options: RolloutOptions) -> bool:
    return options.source.startswith(_KIND)


def open_revisions(
    stack: ExitStack, options: RolloutOptions, interrupted: Callable[[], bool]
) -> tuple[RolloutOptions, Stage]:
    """Connect to both revisions and to the address of users, which --grpc may replace. Fill in that address.

    Raises usage errors if the InferenceService is not ready for a rollout, or if the revisions do not serve the live
    and the new version.
    """
    for name in access.explicit_names() & _OF_LABELS.keys():
        raise click.UsageError(f"{_OF_LABELS[name]} has no effect with --source {_KIND}")
    namespace, _, name = options.source.removeprefix(_KIND).partition("/")
    if not namespace or not name or "/" in name:
        raise click.BadParameter(f"expected kserve:NAMESPACE/NAME; received {options.source!r}", param_hint=_HINT)
    try:
        traffic = Traffic(namespace, name, options.patience, warn, interrupted)
    except BadConfig as error:
        raise click.BadParameter(f"InferenceService {namespace}/{name}: {error}", param_hint=_HINT) from None
    users = find_grpc_address(options.server.grpc_address or traffic.address)
    addresses = (traffic.live.address, traffic.new.address, users)
    access.refuse_ineffective(options, options.metrics, *addresses)
    options = replace(options, server=replace(options.server, grpc_address=users))
    credentials = access.find_access(options.server.access)
    with refused(InvalidArgument):
        services = [
            stack.enter_context(ModelService(address, credentials, targets.PROBE_TIMEOUT_S, options.patience))
            for address in addresses
        ]
    live, new = (
        _default_version(address, service, options)
        for address, service in zip(addresses[:2], services[:2], strict=True)
    )
    if live == new:
        words = f"Both revisions serve version {new}. Their storage must name different versions"
        raise click.UsageError(f"{words}: mount each version at /mnt/models/VERSION.")
    if new != options.new:
        words = f"The revision {traffic.new.name} serves version {new} to requests without a version."
        raise click.BadParameter(words, param_hint="--to")
    specs = (targets.find_spec(options.model, version, None) for version in (live, new, None))
    sides = [
        Side(spec, address, service, {protocol_of(address): address})
        for spec, address, service in zip(specs, addresses, services, strict=True)
    ]
    for side in sides:
        targets.check_prediction(side.spec, protocol_of(side.address), side.address, credentials)
    where = f"{users}, revisions {traffic.live.name} and {traffic.new.name}"
    of_live, of_new, of_users = sides
    user_requests = UserRequests(options.model, _pages, lambda url: credentials)
    return options, Stage(of_live, of_new, of_users, of_users, traffic, traffic.moves(), where, user_requests)


def _pages() -> list[str]:
    raise NoPage("the servers of an InferenceService have no known metrics pages")


def _default_version(address: str, service: ModelService, options: RolloutOptions) -> int:
    """Return the version that a server gives requests without a version: its highest one. Raises usage errors."""
    credentials = access.find_access(options.server.access)
    try:
        versions = service.available(options.model)
    except (Unavailable, DeadlineExceeded) as error:
        targets.end_unreachable(address, credentials, error.message)
    except TpuserveError as error:
        raise click.UsageError(targets.refusal(address, error, "read")) from None
    if not versions:
        raise click.UsageError(f"{address}: {options.model} has no available version.")
    return versions[-1]
