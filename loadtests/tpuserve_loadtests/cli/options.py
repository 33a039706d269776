"""Groups of options that the subcommands share. They import no module that `--help` would have to wait for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from tpuserve_formats.price import Price
from tpuserve_loadtests.arrivals.duration import Duration, ThinkTime
from tpuserve_loadtests.cli.command import argument, group, option

if TYPE_CHECKING:
    from tpuserve_loadtests.arrivals.load import Process

# Copies from tpuserve_client, which imports gRPC and is too slow for --help.
ADDRESS_VARIABLE = "TPUSERVE_ADDRESS"
KEY_VARIABLE = "TPUSERVE_API_KEY"
CONTROL_KEY_VARIABLE = "TPUSERVE_CONTROL_API_KEY"
HEADER = "--header"
KEY_FILE = "--api-key-file"
CONTROL_KEY_FILE = "--control-api-key-file"
DEFAULT_GRPC = "localhost:8500"
DEFAULT_REST = "http://localhost:8501"
# Default number of requests in flight for runs that a command compares.
DEFAULT_COMPARED_USERS = 8

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """TLS files, API key and request headers, which find_access reads."""

    ca: Path | None = option("--ca", type=FILE, help="PEM file of trusted authorities.  [default: the system's]")
    cert: Path | None = option(
        "--cert", type=FILE, help="PEM file of the client certificate, for servers that require one."
    )
    key: Path | None = option("--key", type=FILE, help="PEM file of the client certificate's key.  [default: --cert]")
    tls_server_name: str | None = option(
        "--tls-server-name", metavar="NAME", help="Name in the server's certificate.  [default: the host]"
    )
    headers: tuple[str, ...] = option(
        HEADER,
        metavar="'NAME: VALUE'|@FILE",
        multiple=True,
        help="HTTP header and gRPC metadata of every request, with ${VARIABLE} from the environment; repeatable.",
    )
    api_key_file: Path | None = option(
        KEY_FILE,
        type=FILE,
        help=f"File of an API key or token with the roles predict and read.  [env var of the key: {KEY_VARIABLE}]",
    )
    allow_plaintext_key: bool = option(
        "--allow-plaintext-key",
        is_flag=True,
        help="Send the key without TLS to other machines, where others may read it.",
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
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
    version: int | None = option(
        "--version", type=click.IntRange(0), help="Version of the model.  [default: the latest]"
    )
    label: str | None = option("--label", help="Label of a version, such as canary.  [default: none]")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    model: str | None = argument(required=False)
    scenario: Path | None = option(
        "--scenario", type=FILE, help="YAML file with weighted models and their load, instead of MODEL."
    )


@dataclass(frozen=True, slots=True)
class RequestOptions:
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
        "--input", type=FILE, help="File of inputs: .npz, .npy or .json.  [default: random inputs]"
    )
    recorded: tuple[Path, ...] = option(
        "--recorded",
        multiple=True,
        type=FILE,
        help="Recorded requests: the server's request log (TFRecord or JSON), or a warm-up file; repeatable.",
    )
    recorded_model: str | None = option(
        "--recorded-model", metavar="NAME", help="Model whose recorded requests are sent.  [default: the same model]"
    )
    signature_name: str | None = option("--signature", help="Signature to call.  [default: serving_default]")
    timeout: float = option("--timeout", type=Duration(), default="30s", help="Timeout of a request.")


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    processes: int = option(
        "--processes", type=click.IntRange(1), default=1, help="Number of load generator processes."
    )
    remote: int = option(
        "--remote",
        type=click.IntRange(0),
        default=0,
        help="Number of `tpuserve loadtest worker` processes to wait for.",
        show_default=False,
    )
    listen: str = option(
        "--listen",
        metavar="HOST:PORT",
        default="0.0.0.0:5557",
        help="Address at which remote workers connect. Every process that reaches it can join.",
    )
    generator_limit: str = option(
        "--generator-limit",
        type=click.Choice(["fail", "note"]),
        default="fail",
        help="Consequence if the load generator was the limit: exit code 98, or a note.",
    )
    seed: int = option("--seed", type=click.IntRange(0), default=20, help="Seed of random arrivals.")

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
    process: "Process" = option(
        "--arrivals",
        type=click.Choice(["poisson", "constant", "bursts"]),
        default="poisson",
        help="Arrival process: random, evenly spaced, or in bursts.",
    )
    burst: int = option("--burst", type=click.IntRange(2), default=10, help="Requests per burst.")


def think_time_option() -> Any:  # noqa: ANN401  a field of any type
    return option(
        "--think-time",
        metavar="TIME",
        callback=_think_time,
        help="Closed load: pause of a user after a response: 200ms, or exponential(200ms) with this mean.  "
        "[default: none]",
    )


def _think_time(context: click.Context, parameter: click.Parameter, value: str | None) -> ThinkTime | None:
    try:
        return None if value is None else ThinkTime.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@dataclass(frozen=True, slots=True)
class UsersOrRateOptions:
    users: int | None = option(
        "--users", type=click.IntRange(1), help=f"Closed load: requests in flight.  [default: {DEFAULT_COMPARED_USERS}]"
    )
    rate: str | None = option("--rate", metavar="RATE", help="Open load: rate in requests/s.")
    think_time: ThinkTime | None = think_time_option()


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """The measured duration of a load, and the warm-up before it, in seconds."""

    duration: float = option(
        "--duration", type=Duration(), default="10s", help="Measured time: 10s, 2m, or a number of seconds."
    )
    warm_up: float = option(
        "--warm-up", type=Duration(zero=True), default="1s", help="Warm-up time before the measured time; 0 for none."
    )


def least_effect_option(meaning: str) -> Any:  # noqa: ANN401  a field of any type
    """Declare --least-effect, the smallest difference that counts. `meaning` is its help text."""
    return option("--least-effect", type=click.FloatRange(0, min_open=True), default=0.05, help=meaning)


def unclear_option(what: str) -> Any:  # noqa: ANN401  a field of any type
    """Declare --unclear. The help text names the inconclusive result `what`."""
    return option(
        "--unclear",
        type=click.Choice(["fail", "note"]),
        default="fail",
        help=f"Consequence of {what}: exit code 98, or a note.",
    )


def json_option(instead: str = "instead of the table") -> Any:  # noqa: ANN401  a field of any type
    return option("--json", is_flag=True, help=f"Print one JSON document {instead}.")


def price_option(*, sides: bool = False) -> Any:  # noqa: ANN401  a field of any type
    """Declare --price-per-hour, with a price for each of two machines if `sides`."""
    which = "for two machines, the prices of A and B" if sides else "such as 1.20 or '1.20 EUR'"
    return option(
        "--price-per-hour",
        metavar="PRICE[,PRICE]" if sides else "PRICE",
        callback=_parsed_prices if sides else _parsed_price,
        help=f"Price of the server for an hour, to report the cost of a million predictions; {which}.",
    )


def _parsed_price(context: click.Context, parameter: click.Parameter, value: str | None) -> Price | None:
    return None if value is None else _parse_price(value)


def _parsed_prices(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[Price, ...]:
    if value is None:
        return ()
    prices = tuple(_parse_price(each) for each in value.split(","))
    if len(prices) > 2:
        raise click.BadParameter(f"{value!r} has {len(prices)} prices. Set at most two, for A and B.")
    if prices[0].currency != prices[-1].currency:
        raise click.BadParameter(
            f"{value!r} has two currencies, and nothing converts them. Set both prices in the same currency."
        )
    return prices if len(prices) == 2 else prices * 2


def _parse_price(text: str) -> Price:
    try:
        return Price.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


AUTO: Final = "auto"
OFF: Final = "off"


def metrics_option(*, sides: bool = False) -> Any:  # noqa: ANN401  a field of any type
    """Declare --server-metrics, with a page for each of two servers if `sides`."""
    which = "for two servers, the pages of A and B" if sides else "auto: at the REST address"
    return option(
        "--server-metrics",
        metavar="auto|URL[,URL]|off" if sides else "auto|URL|off",
        default=AUTO,
        callback=_checked_pages if sides else _checked_page,
        help=f"Metrics page of the server, for the time breakdown; {which}.",
    )


def pids_option() -> Any:  # noqa: ANN401  a field of any type
    return option(
        "--server-pid",
        metavar="PID",
        multiple=True,
        type=click.IntRange(1),
        help="Process of the server on this machine, to measure its CPU and memory with its child processes; "
        "repeatable.",
    )


def _checked_page(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value in (AUTO, OFF):
        return value
    from tpuserve_client.address import parse_address
    from tpuserve_client.errors import InvalidArgument

    try:
        place = parse_address(value)
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from None
    if not place.is_rest:
        raise click.BadParameter(f"{value!r} is not auto, off or a URL such as http://localhost:8501/metrics.")
    return place.target


def _checked_pages(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    values = tuple(_checked_page(context, parameter, each.strip()) for each in value.split(","))
    if len(values) > 2:
        raise click.BadParameter(f"{value!r} has {len(values)} pages. Set at most two, for A and B.")
    return values


RECORD: Final = "record"
_DEFAULT: Final = "[default: the manifest's, or by the outputs' dtype]"


class Golden(click.ParamType[str | Path]):
    """`record`, or the path of a file or of a version directory."""

    name = "record|PATH"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        if value == RECORD:
            return value
        if "://" in str(value):
            self.fail(f"{value} is not a local path. Copy the version directory to this machine.", param, ctx)
        return Path(str(click.Path(exists=True).convert(value, param, ctx)))


@dataclass(frozen=True, slots=True)
class ToleranceOptions:
    atol: float | None = option("--atol", type=click.FloatRange(0), help=f"Absolute tolerance of outputs.  {_DEFAULT}")
    rtol: float | None = option("--rtol", type=click.FloatRange(0), help=f"Relative tolerance of outputs.  {_DEFAULT}")


@dataclass(frozen=True, slots=True)
class GoldenOptions:
    golden: str | Path | None = option(
        "--golden",
        type=Golden(),
        metavar="record|PATH",
        help="Compare responses with golden responses: recorded before the load (record), from an .npz or .json "
        "file of inputs and outputs, or from a version directory.",
    )
    check_share: float = option(
        "--check-share", type=click.FloatRange(0, 1, min_open=True), default=0.01, help="Share of responses to compare."
    )
    tolerance: ToleranceOptions = group(ToleranceOptions)

    @property
    def path(self) -> Path | None:
        """The path of the golden answers; None if the command records them, or has none."""
        return self.golden if isinstance(self.golden, Path) else None


def _checked_receiver(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    parts = urlsplit(value or "http://none")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.BadParameter(f"{value!r} is not a URL such as http://localhost:4318.")
    if parts.username or parts.password:
        raise click.BadParameter("A URL with a password would appear in reports. Set OTEL_EXPORTER_OTLP_HEADERS.")
    return value


@dataclass(frozen=True, slots=True)
class PushOptions:
    """The receiver of metrics, and the interval of pushes in seconds."""

    otlp: str | None = option(
        "--otlp",
        metavar="URL",
        callback=_checked_receiver,
        help="Push live metrics over OTLP/HTTP: http://collector:4318, or http://prometheus:9090/api/v1/otlp.",
    )
    otlp_interval: float = option(
        "--otlp-interval", type=Duration(), default="5s", help="Time between two pushes of --otlp."
    )


@dataclass(frozen=True, slots=True)
class PageOptions:
    """The output files that every report supports; None for a file that no option names."""

    junit: Path | None = option("--junit", type=_PATH, metavar="FILE", help="Also write JUnit XML for CI systems.")
    html: Path | None = option(
        "--html", type=_PATH, metavar="FILE", help="Also write a self-contained HTML page with charts."
    )
    attach_to: Path | None = option(
        "--attach-to",
        type=_PATH,
        metavar="VERSION_DIR",
        help="Also write the HTML page into this version directory. The console of its server then links the page.",
    )


@dataclass(frozen=True, slots=True)
class FileOptions(PageOptions):
    """The output files of commands that only measure loads, with CSV and HdrHistogram's log."""

    csv: Path | None = option(
        "--csv", type=_PATH, metavar="FILE", help="Also write CSV, with a row for each time window or run."
    )
    hdr: Path | None = option(
        "--hdr",
        type=_PATH,
        metavar="FILE",
        help="Also write HdrHistogram's log, or its percentiles if FILE ends in .hgrm.",
    )


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """Options of a command that sends requests to one model, or to the models of a scenario."""

    models: ModelOptions = group(ModelOptions)
    server: MeasuredServerOptions = group(MeasuredServerOptions)
    version: VersionOptions = group(VersionOptions)
    requests: RequestOptions = group(RequestOptions)


@dataclass(frozen=True, slots=True)
class LoadOptions(TrafficOptions):
    """Options that `run`, `sweep`, `search` and `soak` share; each command adds its own."""

    arrivals: ArrivalOptions = group(ArrivalOptions)
    time: TimeOptions = group(TimeOptions)
    generator: GeneratorOptions = group(GeneratorOptions)
    metrics: str = metrics_option()
    server_pid: tuple[int, ...] = pids_option()
    price: Price | None = price_option()
    as_json: bool = json_option()
    files: FileOptions = group(FileOptions)
