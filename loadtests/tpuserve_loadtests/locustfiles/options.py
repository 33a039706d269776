"""Options for requests and addresses on Locust's command line. Locust's web page shows them as fields, too."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tpuserve_loadtests.arrivals.duration import parse_duration
from tpuserve_loadtests.cli.access import OF_TLS, is_secure
from tpuserve_loadtests.cli.options import (
    ADDRESS_VARIABLE,
    DEFAULT_GRPC,
    DEFAULT_REST,
    HEADER,
    KEY_VARIABLE,
    AccessOptions,
    MeasuredServerOptions,
    ModelOptions,
    RequestOptions,
    TrafficOptions,
    VersionOptions,
)
from tpuserve_loadtests.requests.protocols import Port

_ADDRESSES: Final[Mapping[Port, tuple[str, str, str]]] = {
    "grpc": ("--grpc", "grpc_address", DEFAULT_GRPC),
    "rest": ("--rest", "rest_url", DEFAULT_REST),
}
# Flag, name of the value in `tpuserve loadtest`, and help. Locust itself uses --version.
_TEXTS: Final = (
    ("--model", "model", "Model that receives the requests."),
    ("--model-version", "version", "Version of the model (default: the latest)."),
    ("--model-label", "label", "Label of a version."),
    ("--signature", "signature_name", "Signature to call (default: serving_default)."),
    ("--rows", "rows", "Rows per request: 8, 1:0.7,8:0.3, 1..16, poisson(4)."),
    ("--length", "length", "Length of random inputs' free dimensions except the first: 64, 16..128."),
    ("--input", "input_file", "File of inputs: .npz, .npy or .json (default: random inputs)."),
    ("--recorded", "recorded_file", "Recorded requests: the server's request log, or a warm-up file."),
    ("--recorded-model", "recorded_model", "Model whose recorded requests are sent."),
    ("--scenario", "scenario", "YAML file with weighted models, instead of --model."),
    ("--request-timeout", "request_timeout", "Timeout of a request (default: 30s)."),
    ("--ca", "ca", "PEM file of trusted authorities (default: the system's)."),
    ("--cert", "cert", "PEM file of the client certificate."),
    ("--key", "key", "PEM file of the client certificate's key."),
    ("--tls-server-name", "tls_server_name", "Name in the server's certificate (default: the host)."),
    ("--api-key-file", "api_key_file", f"File of an API key (default: the key in {KEY_VARIABLE})."),
)


def add_options(parser: Any, ports: Sequence[Port]) -> None:  # noqa: ANN401  Locust ships no annotations
    for port in ports:
        flag, name, default = _ADDRESSES[port]
        parser.add_argument(flag, dest=name, default=None, help=f"Address (default: {ADDRESS_VARIABLE}, or {default}).")
    for flag, name, help_text in _TEXTS:
        parser.add_argument(flag, dest=name, default=None, help=help_text)
    parser.add_argument(
        HEADER,
        dest="headers",
        action="append",
        default=[],
        include_in_web_ui=False,
        help="Header and gRPC metadata of every request, 'NAME: VALUE' or @FILE; ${VARIABLE} is from the environment.",
    )
    parser.add_argument(
        "--allow-plaintext-key",
        action="store_true",
        include_in_web_ui=False,
        help="Send the key without TLS to other machines, where others may read it.",
    )
    parser.add_argument(
        "--fail-if",
        dest="gates",
        nargs="*",
        default=[],
        include_in_web_ui=False,
        help="Exit with 99 if a gate is true: 'p99>20ms', 'error_rate>0.1%%', 'rate<500'.",
    )
    parser.add_argument(
        "--generator-limit",
        choices=["fail", "note"],
        default="fail",
        include_in_web_ui=False,
        help="Consequence if Locust was the limit: exit code 98, or a note.",
    )


@dataclass(frozen=True, slots=True)
class SuiteOptions(TrafficOptions):
    """The options of `tpuserve loadtest run` that also apply under Locust."""

    gates: tuple[str, ...] = ()


def suite_options(values: Namespace, ports: Sequence[Port]) -> SuiteOptions:
    """Convert Locust's parsed options. Raises ValueError for an invalid value."""
    texts: dict[str, str | None] = {name: getattr(values, name, None) or None for _, name, _ in _TEXTS}
    version, addresses = texts["version"], (_address(values, "grpc_address"), _address(values, "rest_url"))
    if version is not None and not version.isdigit():
        raise ValueError(f"--model-version: {version!r} is not a number")
    if not is_secure(addresses) and any(texts[name] for name in OF_TLS):
        raise ValueError(
            "certificate options have no effect without an address with TLS: grpcs://HOST:PORT or https://…"
        )
    return SuiteOptions(
        ModelOptions(texts["model"], _path(texts["scenario"])),
        MeasuredServerOptions(
            *addresses,
            AccessOptions(
                _path(texts["ca"]),
                _path(texts["cert"]),
                _path(texts["key"]),
                texts["tls_server_name"],
                tuple(values.headers),
                _path(texts["api_key_file"]),
                values.allow_plaintext_key,
            ),
            ports[0] if len(ports) == 1 else "both",
        ),
        VersionOptions(None if version is None else int(version), texts["label"]),
        RequestOptions(
            rows=texts["rows"],
            lengths=(texts["length"],) if texts["length"] else (),
            input_file=_path(texts["input_file"]),
            recorded=tuple(filter(None, [_path(texts["recorded_file"])])),
            recorded_model=texts["recorded_model"],
            signature_name=texts["signature_name"],
            timeout=parse_duration(texts["request_timeout"] or "30s"),
        ),
        tuple(values.gates),
    )


def explicit_names(values: Namespace, options: SuiteOptions) -> set[str]:
    """Return the names of given values that a scenario can also set."""
    values_set = {
        "grpc_address": options.server.grpc_address,
        "rest_url": options.server.rest_url,
        "gates": options.gates,
    }
    return {name for name, value in {**values_set, "timeout": values.request_timeout}.items() if value}


def _address(values: Namespace, name: str) -> str | None:
    address: str | None = getattr(values, name, None)
    return address


def _path(text: str | None) -> Path | None:
    if text is not None and not Path(text).is_file():
        raise ValueError(f"file {text} does not exist")
    return None if text is None else Path(text)
