"""Options of `tpuserve loadtest run` on Locust's command line. Locust's web page shows most of them as fields."""

from argparse import SUPPRESS, Action, ArgumentError, Namespace
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import click

from tpuserve_loadtests.cli.access import OF_TLS, explicit_names, is_secure, parse_protocol
from tpuserve_loadtests.cli.command import THRESHOLDS, filled
from tpuserve_loadtests.cli.commands import RUN_OPTIONS, RunOptions, run
from tpuserve_loadtests.cli.options import AccessOptions
from tpuserve_loadtests.requests.protocols import TITLES, Port, Protocol, port_of

# The options by name. Locust's web page has a field for each text.
_TEXTS: Final = "timeout connections ca cert key tls_server_name api_key_file"
_OTHERS: Final = "headers allow_plaintext_key gates objectives generator_limit json_file html junit"
# Options of requests by name, for the class whose model is on the command line.
OF_REQUESTS: Final = "version label signature_name rows lengths input_file recorded recorded_model scenario golden"
# Flags instead of those that Locust uses itself.
_FLAGS: Final = {
    "timeout": "--request-timeout",
    "version": "--model-version",
    "label": "--model-label",
    "json_file": "--tpuserve-json",
    "html": "--tpuserve-html",
    "junit": "--tpuserve-junit",
}
NO_HOST: Final = (
    "You must specify the base host. Set --host, the variable LOCUST_HOST, the host field of the web page, or the "
    "attribute host of the user class: grpc://HOST:8500 or http://HOST:8501."
)


class _SetHost(Action):
    """Error for the address options of `tpuserve loadtest`, because Locust's own option sets the target."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise ArgumentError(self, "Set the address with Locust's --host: grpc://HOST:8500 or http://HOST:8501.")


def add_options(parser: Any) -> None:  # noqa: ANN401  Locust ships no annotations
    """Add the options of the server and of the result to Locust's parser."""
    parser.add_argument("--grpc", "--rest", action=_SetHost, help=SUPPRESS, include_in_web_ui=False)
    add_texts(parser, _TEXTS)
    for option in map(RUN_OPTIONS.__getitem__, _OTHERS.split()):
        kind: dict[str, Any] = {"metavar": option.metavar}  # arguments of several types
        if option.is_flag:
            kind = {"action": "store_true"}
        elif isinstance(option.type, click.Choice):
            kind = {"choices": option.type.choices, "default": option.default}
        elif option.multiple:
            takes_several = option.opts[0] in THRESHOLDS
            kind = {"nargs": "*", "default": []} if takes_several else {"action": "append", "default": []}
        parser.add_argument(_flag(option), dest=_place(option), include_in_web_ui=False, help=_help(option), **kind)


def add_texts(parser: Any, names: str) -> None:  # noqa: ANN401
    """Add the options of `run` with these names as texts, which also have fields on Locust's web page."""
    for option in map(RUN_OPTIONS.__getitem__, names.split()):
        parser.add_argument(_flag(option), dest=_place(option), default=None, help=_help(option))


def _flag(option: click.Option) -> str:
    return _FLAGS.get(option.name or "", option.opts[0])


def _place(option: click.Option) -> str:
    """Return the name of the value in Locust's parsed options."""
    return _flag(option).removeprefix("--").replace("-", "_")


def _help(option: click.Option) -> str:
    return (option.help or "").replace("%", "%%")


def parsed(values: Namespace, *arguments: str) -> tuple[RunOptions, set[str]]:
    """Convert Locust's parsed options, after further `arguments` of `tpuserve loadtest run`.

    Returns the options, and the names of those that the user set. Raises usage errors.
    """
    line = list(arguments)
    for option in map(RUN_OPTIONS.__getitem__, f"{_TEXTS} {_OTHERS} {OF_REQUESTS}".split()):
        value = getattr(values, _place(option), None)
        if option.is_flag:
            line += [option.opts[0]] if value else []
        else:
            each = value if isinstance(value, list) else [value] if value else []
            line += [text for one in each for text in (option.opts[0], one)]
    if model := getattr(values, "model", None):
        line += ["--", model]
    try:
        context = run.make_context("locust", line)
    except click.BadParameter as error:
        if isinstance(error.param, click.Option):
            error.param_hint = f"'{_flag(error.param)}'"
        raise
    return filled(RunOptions, context.params), explicit_names(context)


def addresses_of(host: str) -> dict[Protocol, str]:
    """Return the address of each protocol in a host: one address, or one for gRPC and one for REST with a comma.

    Raises a usage error for an invalid address, for two addresses of a port, and for an empty text.
    """
    if not host.strip():
        raise click.UsageError(NO_HOST)
    found: dict[Port, Protocol] = {}
    addresses: dict[Protocol, str] = {}
    for text in map(str.strip, host.split(",")):
        protocol = parse_protocol(text, "--host")
        port = port_of(protocol)
        if port in found:
            raise click.BadParameter(
                f"{host!r} has two {TITLES[port]} addresses. Set one address, or one for gRPC and one for REST.",
                param_hint="--host",
            )
        found[port] = protocol
        addresses[protocol] = text
    return addresses


def check_certificates(options: AccessOptions, addresses: Mapping[Protocol, str]) -> None:
    """Raise a usage error for a certificate option without an address that uses TLS."""
    if not is_secure(addresses.values()) and any(getattr(options, name) for name in OF_TLS):
        raise click.UsageError(
            "certificate options have no effect without an address with TLS: grpcs://HOST:PORT or https://…"
        )
