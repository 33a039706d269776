"""Locust users that send the requests of `tpuserve loadtest run`, from Locust's command line.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

from argparse import Namespace
from typing import Any, ClassVar, Final

import click
from locust import events

from tpuserve_loadtests.cli.loads import rules_of
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.locustfiles.options import NO_HOST, OF_REQUESTS, add_texts, addresses_of, parsed
from tpuserve_loadtests.locustfiles.session import Requested
from tpuserve_loadtests.locustfiles.users import TpuserveUser
from tpuserve_loadtests.requests.protocols import port_of

_ADDRESSES: Final = ("grpc_address", "rest_url")


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # Locust ships no annotations
def _add_options(parser: Any, **_: object) -> None:  # noqa: ANN401
    parser.add_argument("--model", default=None, help="Model that receives the requests.")
    add_texts(parser, OF_REQUESTS)


class PredictUser(TpuserveUser):
    """A TpuserveUser whose model and payloads are those of Locust's command line, or of a scenario file."""

    tasks: ClassVar = [TpuserveUser.send_payload]

    @classmethod
    def requested(cls, host: str, values: Namespace) -> Requested:
        """Return the addresses and the payloads that the options name. Raises ValueError or a usage error."""
        if not host and not values.scenario:
            raise click.UsageError(NO_HOST)
        addresses = addresses_of(host) if host else {}
        flags = [text for protocol, address in addresses.items() for text in (f"--{port_of(protocol)}", address)]
        options, explicit = parsed(values, *flags)
        explicit |= set(_ADDRESSES) if host else set()
        traffic, options = find_traffic(options, own_load=True, explicit=explicit)
        if traffic.explicit.isdisjoint(_ADDRESSES):  # the scenario has none, too
            raise click.UsageError(NO_HOST)
        return Requested(traffic.addresses, rules_of(options).gates, traffic, title=traffic.title)
