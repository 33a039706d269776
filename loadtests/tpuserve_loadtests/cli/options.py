"""Groups of options that the subcommands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuserve_loadtests.arrivals.duration import Duration
from tpuserve_loadtests.cli.command import argument, group, option

if TYPE_CHECKING:
    from tpuserve_loadtests.arrivals.duration import ThinkTime
    from tpuserve_loadtests.arrivals.load import Process

# Copies from tpuserve_client, which imports gRPC and is too slow for --help.
ADDRESS_VARIABLE = "TPUSERVE_ADDRESS"
KEY_VARIABLE = "TPUSERVE_API_KEY"
CONTROL_KEY_VARIABLE = "TPUSERVE_CONTROL_API_KEY"
DEFAULT_GRPC = "localhost:8500"
DEFAULT_REST = "http://localhost:8501"
# Default number of requests in flight for runs that a command compares.
DEFAULT_COMPARED_USERS = 8

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """TLS files, API key and request headers, which access.find_access reads."""

    ca: Path | None = option("--ca", type=_FILE, help="PEM file of trusted authorities.  [default: the system's]")
    cert: Path | None = option(
        "--cert", type=_FILE, help="PEM file of the client certificate, for servers that require one."
    )
    key: Path | None = option("--key", type=_FILE, help="PEM file of the client certificate's key.  [default: --cert]")
    tls_server_name: str | None = option(
        "--tls-server-name", metavar="NAME", help="Name in the server's certificate.  [default: the host]"
    )
    headers: tuple[str, ...] = option(
        "--header",
        metavar="'NAME: VALUE'|@FILE",
        multiple=True,
        help="HTTP header and gRPC metadata of every request, with ${VARIABLE} from the environment; repeatable.",
    )
    api_key_file: Path | None = option(
        "--api-key-file",
        type=_FILE,
        help=f"File of an API key or token with the roles predict and read.  [env var of the key: {KEY_VARIABLE}]",
    )
    allow_plaintext_key: bool = option(
        "--allow-plaintext-key",
        is_flag=True,
        help="Send the key without TLS to other machines, where others may read it.",
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The addresses of the server, and the access to it."""

    grpc_address: str | None = option(
        "--grpc",
        metavar="HOST:PORT",
        help="gRPC address; grpcs://HOST:PORT with TLS; oip+grpc://HOST:PORT for the Open Inference Protocol.  "
        f"[env var: {ADDRESS_VARIABLE}; default: {DEFAULT_GRPC}]",
    )
    rest_url: str | None = option(
        "--rest",
        metavar="URL",
        help="REST address; oip+http://HOST:PORT for the Open Inference Protocol with binary tensors, oip-json+http:// "
        f"with JSON.  [env var: {ADDRESS_VARIABLE}; default: {DEFAULT_REST}]",
    )
    access: AccessOptions = group(AccessOptions)


@dataclass(frozen=True, slots=True)
class MeasuredServerOptions(ServerOptions):
    """The server, and the ports to measure: `grpc`, `rest` or `both`."""

    protocol: str | None = option(
        "--protocol",
        type=click.Choice(["grpc", "rest", "both"]),
        help="Protocols to measure.  [default: those with an address option, or both]",
    )


@dataclass(frozen=True, slots=True)
class VersionOptions:
    """The version that receives requests."""

    version: int | None = option(
        "--version", type=click.IntRange(0), help="Version of the model.  [default: the latest]"
    )
    label: str | None = option("--label", help="Label of a version, such as canary.  [default: none]")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """A model, or a scenario with several models."""

    model: str | None = argument(required=False)
    scenario: Path | None = option(
        "--scenario", type=_FILE, help="YAML file with weighted models and their load, instead of MODEL."
    )


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The requests to send."""

    rows: str | None = option(
        "--rows", metavar="ROWS", help="Rows per request: 8, 1:0.7,8:0.3, 1..16, poisson(4).  [default: 1]"
    )
    lengths: tuple[str, ...] = option(
        "--length",
        metavar="[INPUT=]LENGTH",
        multiple=True,
        help="Length of random inputs' free dimensions except the first: 64, 16..128, lognormal(64,0.5).  [default: 1]",
    )
    input_file: Path | None = option(
        "--input", type=_FILE, help="File of inputs: .npz, .npy or .json.  [default: random inputs]"
    )
    recorded: tuple[Path, ...] = option(
        "--recorded",
        multiple=True,
        type=_FILE,
        help="Recorded requests: the server's request log (TFRecord or JSON), or a warm-up file; repeatable.",
    )
    recorded_model: str | None = option(
        "--recorded-model", metavar="NAME", help="Model whose recorded requests are sent.  [default: the same model]"
    )
    signature_name: str | None = option("--signature", help="Signature to call.  [default: serving_default]")
    timeout: float = option(
        "--timeout", type=Duration(), default="30s", show_default=True, help="Timeout of a request."
    )


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """The processes of the load generator, and its limits."""

    processes: int = option(
        "--processes", type=click.IntRange(1), default=1, show_default=True, help="Number of load generator processes."
    )
    remote: int = option(
        "--remote",
        type=click.IntRange(0),
        default=0,
        help="Number of `tpuserve loadtest worker` processes to wait for.",
    )
    listen: str = option(
        "--listen",
        metavar="HOST:PORT",
        default="0.0.0.0:5557",
        show_default=True,
        help="Address at which remote workers connect. Every process that reaches it can join.",
    )
    generator_limit: str = option(
        "--generator-limit",
        type=click.Choice(["fail", "note"]),
        default="fail",
        show_default=True,
        help="Consequence if the load generator was the limit: exit code 98, or a note.",
    )
    seed: int = option("--seed", type=click.IntRange(0), default=20, show_default=True, help="Seed of random arrivals.")

    @property
    def strict(self) -> bool:
        """Whether the command fails when the generator is the limit."""
        return self.generator_limit == "fail"

    def check(self) -> None:
        """Raise a usage error for an invalid --listen address, if --remote needs it."""
        host, _, port = self.listen.rpartition(":")
        if self.remote and not (host and port.isdigit()):
            raise click.BadParameter(f"{self.listen!r} is not HOST:PORT.", param_hint="--listen")


@dataclass(frozen=True, slots=True)
class ArrivalOptions:
    """The arrival process of an open load."""

    process: "Process" = option(
        "--arrivals",
        type=click.Choice(["poisson", "constant", "bursts"]),
        default="poisson",
        show_default=True,
        help="Arrival process: random, evenly spaced, or in bursts.",
    )
    burst: int = option("--burst", type=click.IntRange(2), default=10, show_default=True, help="Requests per burst.")


def think_time_option() -> Any:  # noqa: ANN401  a field of any type
    """Declare --think-time, the pause of a closed load's users."""
    return option(
        "--think-time",
        metavar="TIME",
        callback=_think_time,
        help="Closed load: pause of a user after a response: 200ms, or exponential(200ms) with this mean.  "
        "[default: none]",
    )


def _think_time(context: click.Context, parameter: click.Parameter, value: str | None) -> "ThinkTime | None":
    from tpuserve_loadtests.arrivals.duration import ThinkTime

    try:
        return None if value is None else ThinkTime.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@dataclass(frozen=True, slots=True)
class UsersOrRateOptions:
    """A closed load, or an open one."""

    users: int | None = option(
        "--users", type=click.IntRange(1), help=f"Closed load: requests in flight.  [default: {DEFAULT_COMPARED_USERS}]"
    )
    rate: str | None = option("--rate", metavar="RATE", help="Open load: rate in requests/s.")
    think_time: "ThinkTime | None" = think_time_option()


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """The measured duration of a load, and the warm-up before it, in seconds."""

    duration: float = option(
        "--duration",
        type=Duration(),
        default="10s",
        show_default=True,
        help="Measured time: 10s, 2m, or a number of seconds.",
    )
    warm_up: float = option(
        "--warm-up",
        type=Duration(zero=True),
        default="1s",
        show_default=True,
        help="Warm-up time before the measured time; 0 for none.",
    )


def least_effect_option(meaning: str) -> Any:  # noqa: ANN401  a field of any type
    """Declare --least-effect, the smallest difference that counts. `meaning` is its help text."""
    return option(
        "--least-effect", type=click.FloatRange(0, min_open=True), default=0.05, show_default=True, help=meaning
    )


def unclear_option(what: str) -> Any:  # noqa: ANN401  a field of any type
    """Declare --unclear. The help text names the inconclusive result `what`."""
    return option(
        "--unclear",
        type=click.Choice(["fail", "note"]),
        default="fail",
        show_default=True,
        help=f"Consequence of {what}: exit code 98, or a note.",
    )


def json_option(instead: str = "instead of the table") -> Any:  # noqa: ANN401  a field of any type
    """Declare --json, which prints one document for programs."""
    return option("--json", is_flag=True, help=f"Print one JSON document {instead}.")
