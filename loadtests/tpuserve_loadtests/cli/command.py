"""Commands with a frozen dataclass of options, which declares the type, flag and help of each option once.

Each field declares a click parameter. A field with another such dataclass is a group that commands share.
"""

import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tpuserve_loadtests.judgement.exit_codes import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Names of values by heading of `--help`. Values in no section belong to the command itself and come first.
SECTIONS: Final = {
    "Server and model": "grpc_address rest_url protocol version label signature_name timeout metrics server_pid",
    "TLS, key and headers": (
        "ca cert key tls_server_name api_key_file control_api_key_file b_api_key_file allow_plaintext_key headers"
    ),
    "Requests": "rows lengths input_file prompts recorded recorded_model",
    "Load": (
        "users think_time rate until trace_file speed process burst rounds request_limit duration warm_up segments "
        "seed settling_figure settled_within most_runs"
    ),
    "Load generator": "processes remote listen generator_limit",
    "Checks and gates": "golden check_share atol rtol objectives gates baseline least_effect unclear",
    "Output": "price prices as_json json_file log annotations junit html attach_to csv hdr otlp otlp_interval",
}
OWN: Final = "Options"
# Sections that keep the order above, independent of the order of the option groups.
_SORTED: Final = ("Load", "Output")
# Options that accept several thresholds, which click does not support.
THRESHOLDS: Final = ("--fail-if", "--slo", "--until")
_LIKE_ONE: Final = re.compile(r"[^-<>][^<>]*[<>]")
_DECLARED: Final = "declared"
HELP_OPTIONS: Final = ("-h", "--help")

_Options = TypeVar("_Options", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class _Parameter:
    kind: type[click.Parameter]
    flags: tuple[str, ...]
    settings: Mapping[str, Any]  # click's settings, of any type


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of options, with `changes` to this command's settings by option name."""

    kind: "type[DataclassInstance]"
    changes: Mapping[str, Mapping[str, Any]]


def option(*flags: str, **settings: Any) -> Any:  # noqa: ANN401  a field of any type, with click's settings
    """Declare an option with the flags and settings of click.option, which shows its default.

    Its value has the field's name.
    """
    shown = {"show_default": "default" in settings, **settings}
    return field(metadata={_DECLARED: _Parameter(click.Option, flags, shown)})


def argument(**settings: Any) -> Any:  # noqa: ANN401  a field of any type, with click's settings
    return field(metadata={_DECLARED: _Parameter(click.Argument, (), settings)})


def group(kind: "type[_Options]", **changes: Mapping[str, Any]) -> "_Options":
    declared: _Options = field(metadata={_DECLARED: _Group(kind, changes)})
    return declared


def command(
    body: str,
    kind: "type[DataclassInstance]",
    **settings: Any,  # noqa: ANN401  click's settings
) -> click.Command:
    """Create a click command of `body`, as MODULE:FUNCTION relative to this package, for an instance of `kind`.

    The module is imported only when the command runs, after gevent's setup, because its imports are slow and open
    sockets.
    """
    module, _, name = body.partition(":")

    def called(**values: object) -> None:
        from tpuserve_client.fork import is_child
        from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

        # A process that was forked from one with clients needs gRPC's fork support itself.
        give_process_to_gevent(forks_use_grpc=is_child())
        try:
            with _interruptible():
                options: Any = filled(kind, values)
                if hasattr(options, "files"):
                    options.files.clear()
                getattr(import_module(f".{module}", __package__), name)(options)
        except KeyboardInterrupt:
            click.echo("Interrupted before the load. There is no report.", err=True)
            sys.exit(EXIT_INTERRUPTED)

    context = {"help_option_names": list(HELP_OPTIONS)}
    return click.command(name, cls=_Command, params=_parameters(kind, {}), context_settings=context, **settings)(called)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, too, where no load handles them."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    for each in (each for each, handler in before.items() if handler == signal.SIG_DFL):
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is signal.default_int_handler:
                signal.signal(each, handler)


@contextmanager
def refused(*kinds: type[Exception], hint: str = "") -> Iterator[None]:
    """Turn errors of these kinds into usage errors, about the option `hint` if it is set."""
    try:
        yield
    except kinds as error:
        message = getattr(error, "message", str(error))
        raise (click.BadParameter(message, param_hint=hint) if hint else click.UsageError(message)) from None


def with_values(options: _Options, values: Mapping[str, object]) -> _Options:
    """Return a copy of the options with `values` set, also in groups. Ignore unknown names."""
    changes: dict[str, object] = {}
    for each in fields(options):
        value = getattr(options, each.name)
        if is_dataclass(value) and not isinstance(value, type):
            changes[each.name] = with_values(value, values)
        elif each.name in values:
            changes[each.name] = values[each.name]
    return replace(options, **changes)


class _Command(click.Command):
    """Command whose help lists the options under headings, and which accepts several thresholds after one option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        option = ""
        for number, arg in enumerate(args):
            if arg in THRESHOLDS:
                option = arg
            elif option and number >= 2 and args[number - 1] != option and _LIKE_ONE.match(arg):
                spread.append(option)
            elif option and args[number - 1] != option:
                option = ""
            spread.append(arg)
        return super().parse_args(ctx, spread)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        heading_of = {name: heading for heading, names in SECTIONS.items() for name in names.split()}
        found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (OWN, *SECTIONS)}
        for option in sorted(self.get_params(ctx), key=_place):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                found[heading_of.get(option.name or "", OWN)].append(record)
        for heading, records in found.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _place(parameter: click.Parameter) -> int:
    names = [name for heading in _SORTED for name in SECTIONS[heading].split()]
    return names.index(parameter.name) if parameter.name in names else 0


def _parameters(
    kind: "type[DataclassInstance]", changes: Mapping[str, Mapping[str, Any]]
) -> list[click.Parameter]:  # in the order of the help
    found: list[click.Parameter] = []
    for each in fields(kind):
        declared = each.metadata[_DECLARED]
        if isinstance(declared, _Group):
            found += _parameters(declared.kind, {**declared.changes, **changes})
        else:
            settings = {**declared.settings, **changes.get(each.name, {})}
            found.append(declared.kind([each.name, *declared.flags], **settings))
    return found


def filled(kind: type[_Options], values: Mapping[str, object]) -> _Options:
    """Create the options, and the groups in them, from click's values by name."""
    found: dict[str, object] = {}
    for each in fields(kind):
        declared = each.metadata[_DECLARED]
        is_group = isinstance(declared, _Group)
        found[each.name] = filled(declared.kind, values) if is_group else values[each.name]
    return kind(**found)
