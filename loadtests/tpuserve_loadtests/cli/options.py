"""Groups of options that the subcommands share. They import no module that `--help` would have to wait for."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import click

from tpuserve_formats.price import Price
from tpuserve_loadtests.arrivals.duration import ThinkTime, parse_duration
from tpuserve_loadtests.cli.command import argument, group, option
from tpuserve_loadtests.requests.protocols import GRPC_CONNECTIONS

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
# Users of the closed load that finds a rate for an open one.
PROBING_USERS: Final = 8

_Value = TypeVar("_Value")

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PATH = click.Path(path_type=Path)


class Parsed(click.ParamType[Any]):
    """Type of a parameter whose text `parse` converts. A ValueError of it becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Convert a text, and return every other value as it is."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


# Seconds.
DURATION: Final = Parsed("duration", parse_duration)
DURATION_OR_ZERO: Final = Parsed("duration", partial(parse_duration, zero=True))


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
        "with JSON, openai+http:// for streamed completions.  "
        f"[env var: {ADDRESS_VARIABLE}; default: {DEFAULT_REST}]",
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


AUTO: Final = "auto"
RECORD: Final = "record"
OFF: Final = "off"
_GOLDEN: Final = (AUTO, RECORD, OFF)
_DEFAULT: Final = "[default: the manifest's, or by the outputs' dtype]"


class Golden(click.ParamType[str | Path]):
    """`auto`, `record`, `off`, or the path of a file or of a version directory."""

    name = "auto|record|off|PATH"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        if value in _GOLDEN:
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
    golden: str | Path = option(
        "--golden",
        type=Golden(),
        default=AUTO,
        metavar="auto|record|off|PATH",
        help="Compare responses with golden responses: recorded before the load, of some requests (auto) or all "
        "(record), from an .npz or .json file of inputs and outputs, or from a version directory.",
    )
    check_share: float | None = option(
        "--check-share",
        type=click.FloatRange(0, 1, min_open=True),
        help="Share of responses to compare.  [default: 0.01, and at least 20 a second]",
    )
    tolerance: ToleranceOptions = group(ToleranceOptions)

    @property
    def path(self) -> Path | None:
        """The path of the golden answers; None if the command records them, or omits them."""
        return self.golden if isinstance(self.golden, Path) else None


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
    prompts: Path | None = option(
        "--prompts",
        type=FILE,
        help="File of prompts for openai+: one in each line, or JSON lines with prompt and max_tokens.",
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
    signature_name: str | None = option(
        "--signature", help="Signature to call; with openai+: completions.  [default: serving_default]"
    )
    timeout: float = option("--timeout", type=DURATION, default="30s", help="Timeout of a request.")
    connections: int | None = option(
        "--connections",
        type=click.IntRange(1),
        help=f"Number of gRPC connections, and limit of REST connections.  [default: {GRPC_CONNECTIONS} over gRPC, one "
        "for each request in flight over REST]",
    )
    golden: GoldenOptions = group(GoldenOptions)


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
        type=Parsed("time", ThinkTime.parse),
        help="Closed load: pause of a user after a response: 200ms, or exponential(200ms) with this mean.  "
        "[default: none]",
    )


@dataclass(frozen=True, slots=True)
class UsersOrRateOptions:
    users: int | None = option("--users", type=click.IntRange(1), help="Closed load: requests in flight.")
    rate: str | None = option(
        "--rate",
        metavar="RATE",
        help="Open load: rate in requests/s.  [default: the server's current rate, or half of what "
        f"{PROBING_USERS} users reach]",
    )
    think_time: ThinkTime | None = think_time_option()


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """The measured duration of a load, and the warm-up before it, in seconds."""

    duration: float = option(
        "--duration", type=DURATION, default="10s", help="Measured time: 10s, 2m, or a number of seconds."
    )
    warm_up: float = option(
        "--warm-up", type=DURATION_OR_ZERO, default="1s", help="Warm-up time before the measured time; 0 for none."
    )


def least_effect_option(meaning: str, default: float = 0.05) -> Any:  # noqa: ANN401  a field of any type
    """Declare --least-effect, the smallest difference that counts. `meaning` is its help text."""
    return option("--least-effect", type=click.FloatRange(0, min_open=True), default=default, help=meaning)


def unclear_option(what: str) -> Any:  # noqa: ANN401  a field of any type
    """Declare --unclear. The help text names the inconclusive result `what`."""
    return option(
        "--unclear",
        type=click.Choice(["fail", "note"]),
        default="fail",
        help=f"Consequence of {what}: exit code 97, or a note.",
    )


def gates_option(what: str = "") -> Any:  # noqa: ANN401  a field of any type
    """Declare --fail-if. `what` is what the gates judge, if it is not the run."""
    return option(
        "--fail-if",
        multiple=True,
        metavar="GATE...",
        help=f"Exit with 99 if a gate is true{what}: 'p99>20ms' 'small.error_rate>0.1%' 'rate<500'. Accepts several.",
    )


def objectives_option() -> Any:  # noqa: ANN401  a field of any type
    """Declare --slo."""
    return option(
        "--slo",
        multiple=True,
        metavar="OBJECTIVE...",
        help="Objectives, the opposites of gates: 'p99<=20ms' '*.error_rate<=1%'. Accepts several.",
    )


def json_option(instead: str = "instead of the table") -> Any:  # noqa: ANN401  a field of any type
    return option("--json", is_flag=True, help=f"Print one JSON document {instead}.")


def price_option(*, sides: bool = False) -> Any:  # noqa: ANN401  a field of any type
    """Declare --price-per-hour, with a price for each of two machines if `sides`."""
    which = "for two machines, the prices of A and B" if sides else "such as 1.20 or '1.20 EUR'"
    return option(
        "--price-per-hour",
        metavar="PRICE[,PRICE]" if sides else "PRICE",
        **(
            {"type": Parsed("prices", _parse_prices), "default": ()}
            if sides
            else {"type": Parsed("price", Price.parse)}
        ),
        show_default=False,
        help=f"Price of the server for an hour, to report the cost of a million predictions; {which}.",
    )


def _parse_prices(text: str) -> tuple[Price, ...]:
    prices = _at_most_two("prices", Price.parse, text)
    if prices[0].currency != prices[-1].currency:
        raise ValueError(
            f"{text!r} has two currencies, and nothing converts them. Set both prices in the same currency."
        )
    return prices if len(prices) == 2 else prices * 2


def _at_most_two(what: str, parse: Callable[[str], _Value], text: str) -> tuple[_Value, ...]:
    found = tuple(parse(each.strip()) for each in text.split(","))
    if len(found) > 2:
        raise ValueError(f"{text!r} has {len(found)} {what}. Set at most two, for A and B.")
    return found


def metrics_option(*, sides: bool = False) -> Any:  # noqa: ANN401  a field of any type
    """Declare --server-metrics, with a page for each of two servers if `sides`."""
    which = "for two servers, the pages of A and B" if sides else "auto: at the REST address"
    return option(
        "--server-metrics",
        metavar="auto|URL[,URL]|off" if sides else "auto|URL|off",
        default=AUTO,
        type=Parsed("pages", partial(_at_most_two, "pages", _checked_page) if sides else _checked_page),
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


def _checked_page(value: str) -> str:
    if value in (AUTO, OFF):
        return value
    from tpuserve_client.address import parse_address
    from tpuserve_client.errors import InvalidArgument

    try:
        place = parse_address(value)
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    if not place.is_rest:
        raise ValueError(f"{value!r} is not auto, off or a URL such as http://localhost:8501/metrics.")
    return place.target


def _checked_receiver(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not a URL such as http://localhost:4318.")
    if parts.username or parts.password:
        raise ValueError("A URL with a password would appear in reports. Set OTEL_EXPORTER_OTLP_HEADERS.")
    return value


@dataclass(frozen=True, slots=True)
class PushOptions:
    """The receiver of metrics, and the interval of pushes in seconds."""

    otlp: str | None = option(
        "--otlp",
        metavar="URL",
        type=Parsed("receiver", _checked_receiver),
        help="Push live metrics over OTLP/HTTP: http://collector:4318, or http://prometheus:9090/api/v1/otlp.",
    )
    otlp_interval: float = option(
        "--otlp-interval", type=DURATION, default="5s", help="Time between two pushes of --otlp."
    )


@dataclass(frozen=True, slots=True)
class PageOptions:
    """The output files that every report supports; None for a file that no option names."""

    json_file: Path | None = option(
        "--json-file",
        type=_PATH,
        metavar="FILE",
        help="Also write the JSON document with the histograms of each window, for `diff` and other programs.",
    )
    annotations: str = option(
        "--annotations",
        type=click.Choice(["auto", "github", "off"]),
        default="auto",
        help="Print failed checks as annotations for GitHub Actions and add the tables to the job's summary; auto: if "
        "GITHUB_ACTIONS is set.",
    )
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

    def clear(self) -> None:
        """Remove the files of an earlier run, which would read as the result of this one if it ends before its report.

        A link stays, and its file becomes empty. Ignores files that cannot be written, which the commands refuse.
        """
        for path in (getattr(self, each.name) for each in fields(self)):
            if isinstance(path, Path) and path.is_file():
                with suppress(OSError):
                    path.write_bytes(b"")
                    if not path.is_symlink():
                        path.unlink()


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
class DifferenceOptions:
    """The rules for the comparison of two results, which were measured at different times."""

    least_effect: float = least_effect_option("Smallest difference of two results that counts; 0.1 is 10 %.", 0.1)
    unclear: str = unclear_option("a figure that may be worse by three times --least-effect")


@dataclass(frozen=True, slots=True)
class BaselineOptions:
    baseline: Path | None = option(
        "--baseline",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Compare with the newest passed result of the same model, load and machine in this directory, and add the "
        "result of this run to it if both pass.",
    )
    difference: DifferenceOptions = group(DifferenceOptions)


class MeasuringOptions(Protocol):
    """The options of every command that runs a load."""

    @property
    def server(self) -> ServerOptions: ...
    @property
    def requests(self) -> RequestOptions: ...
    @property
    def generator(self) -> GeneratorOptions: ...


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options that `run`, `sweep`, `search` and `soak` share; each command adds its own.

    Such a command sends requests to one model, or to the models of a scenario.
    """

    models: ModelOptions = group(ModelOptions)
    server: MeasuredServerOptions = group(MeasuredServerOptions)
    version: VersionOptions = group(VersionOptions)
    requests: RequestOptions = group(RequestOptions)
    arrivals: ArrivalOptions = group(ArrivalOptions)
    time: TimeOptions = group(TimeOptions)
    generator: GeneratorOptions = group(GeneratorOptions)
    metrics: str = metrics_option()
    server_pid: tuple[int, ...] = pids_option()
    price: Price | None = price_option()
    as_json: bool = json_option()
    files: FileOptions = group(FileOptions)
