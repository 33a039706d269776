"""Readers of configuration files, with one-line errors for an operator: text protos, and files of credentials.

`model_config_file.py` reads the models, and `listening.py` the SSLConfig. Light imports only, for the supervisor.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from tpuserve_formats.messages._proto import batching_parameters_pb2
from tpuserve_formats.messages._proto.monitoring_config_pb2 import MonitoringConfig
from tpuserve_server.access.credentials import CredentialsError, parse_credentials
from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.access.files import read_text as read_credentials
from tpuserve_server.access.tokens import parse_jwks
from tpuserve_server.core.batching.parameters import UNSET_PARAMETERS, BatchingParameters
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.storage import FileName, without_secrets
from tpuserve_server.startup.settings import Settings
from tpuserve_server.storage.named_file import read_file

# A configuration of thousands of models has about one MiB. The limit keeps a wrong path from filling the memory.
_MAX_BYTES = 64 << 20

_Message = TypeVar("_Message", bound=Message)

# protobuf's Python parser quotes the whole line before it describes the error.
_QUOTED_VALUE = re.compile(r"(Expected .* found:|ending quote:|invalid \w+ .*:) .*(\. Invalid protobuf file: )")
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?(.*)$", re.DOTALL)


class ConfigError(Exception):
    """Error of an unusable configuration file. The message is one line for an operator and names the file."""


def read(path: FileName, into: _Message, *, secret: bool = False) -> _Message:
    """Set the fields of the file `path` in `into`, and return `into`. Blocks.

    An error never shows values of a `secret` file.

    Raises:
        ConfigError: the file cannot be read, or is not a text proto of this type. In the second case the message has
            TensorFlow Serving's wording (protobuf's on stderr, and that of util/proto_util.h), line and column.
    """
    try:
        return parse(read_text(path), into, path)
    except ConfigError as error:
        raise ConfigError(_QUOTED_VALUE.sub(r"\1 (not shown)\2", str(error)) if secret else str(error)) from None


def read_text(path: FileName, shown: FileName | None = None) -> str:
    """Return the file's text. Raises ConfigError if the file cannot be read; the message names it as `shown`."""
    try:
        return _read(path, shown or path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise _unreadable(shown or path, f"not UTF-8 text (byte {error.start})") from None


def read_bytes(path: FileName) -> bytes:
    """Return the file's content. Raises ConfigError if the file cannot be read."""
    return _read(path, path)


def _read(path: FileName, shown: FileName) -> bytes:
    try:
        return read_file(path, _MAX_BYTES)
    except OSError as error:
        raise _unreadable(shown, error.strerror or str(error)) from None


def _unreadable(shown: FileName, reason: str) -> ConfigError:
    return ConfigError(f"Cannot read '{show_file(shown)}': {reason}")


def show_file(path: FileName) -> str:
    """Return the name of a file for messages, without the secrets of a URI."""
    return without_secrets(str(path))


def parse(text: str, into: _Message, path: FileName) -> _Message:
    """Parse `text` from the file at `path` into `into`. Raises ConfigError as `read` does."""
    try:
        return text_format.Parse(text, into)
    except text_format.ParseError as error:
        raise ConfigError(_explain(str(error), into, path)) from None
    except RecursionError:
        raise ConfigError(_explain("nested too deeply", into, path)) from None


def _explain(reason: str, message: Message, path: FileName) -> str:
    found = _POSITION.match(reason)
    where = f"{found[1]}:{found[2]}: {found[3]}" if found else reason
    what = " ".join(where.split()).rstrip(".")
    return (
        f"Error parsing text-format {message.DESCRIPTOR.full_name}: {what}. Invalid protobuf file: '{show_file(path)}'"
    )


# File of a version's own parameters, as upstream names it (servables/tensorflow/bundle_factory_util.cc).
_PARAMETERS_FILE = "batching_params.pbtxt"


def read_batching_parameters(path: FileName, flags: BatchingParameters = UNSET_PARAMETERS) -> BatchingParameters:
    """Return the parameters in the file at `path`, overridden by `flags`. Blocks.

    Raises:
        ConfigError: the file cannot be read, is not a BatchingParameters, or has parameters that conflict.
    """
    return flags.over(_parse_batching_parameters(read_text(path), path))


def read_model_batching_parameters(version_path: Path) -> BatchingParameters | None:
    """Return a version's own parameters, or None if it has no file for them. Blocks.

    Raises:
        InvalidArgument: `read_batching_parameters` would refuse the file. Clients may see the message, so it names no
            directory.
    """
    path, shown = version_path / _PARAMETERS_FILE, Path(_PARAMETERS_FILE)
    if not path.exists():
        return None
    try:
        return _parse_batching_parameters(read_text(path, shown), shown)
    except ConfigError as error:
        raise InvalidArgument(str(error)) from None


def _parse_batching_parameters(text: str, path: FileName) -> BatchingParameters:
    # It imports numpy, which the supervisor otherwise does not need.
    from tpuserve_server.wire.model_server_config import batching_parameters

    message = parse(text, batching_parameters_pb2.BatchingParameters(), path)
    try:
        return batching_parameters(message)
    except InvalidArgument as error:
        raise ConfigError(f"{error.message}. Invalid BatchingParameters file: '{show_file(path)}'") from None


# util/prometheus_exporter.cc
_DEFAULT_METRICS_PATH = "/monitoring/prometheus/metrics"
# Pages of the REST application (protocols/rest.py).
_TAKEN = frozenset(("/healthz", "/readyz", "/openapi.json"))
# Prefixes of the protocols.
_PROTOCOLS = ("/v1/", "/v2")
_PATH = re.compile(r"(/[\w.~%:@!$&'()*+,;=-]*)+")


def read_metrics_path(path: FileName) -> str | None:
    """Return the URL path of the metrics page, or None if the file at `path` disables the page. Blocks.

    Raises:
        ConfigError: the file cannot be read, is not a MonitoringConfig, or has an invalid or reserved URL path.
    """
    config, name = read(path, MonitoringConfig()).prometheus_config, show_file(path)
    if not config.enable:
        return None
    if config.path and not _PATH.fullmatch(config.path):
        raise ConfigError(
            f"MonitoringConfig '{name}': expected a path such as {_DEFAULT_METRICS_PATH}, got '{config.path}'"
        )
    if config.path.lower().startswith(_PROTOCOLS):
        raise ConfigError(f"MonitoringConfig '{name}': expected a path outside /v1/ and /v2, got '{config.path}'")
    if config.path.lower() in _TAKEN:
        raise ConfigError(f"MonitoringConfig '{name}': the path '{config.path}' is reserved for another page")
    return config.path or _DEFAULT_METRICS_PATH


def check_credentials(path: FileName) -> None:
    """Check a credentials file. Raises ConfigError."""
    with _as_config_error():
        parse_credentials(read_credentials(path, read_file))


def check_jwks(path: FileName) -> None:
    """Check a JWKS file. Raises ConfigError."""
    with _as_config_error():
        parse_jwks(read_credentials(path, read_file))


def open_credentials(settings: Settings) -> CredentialFiles | None:
    """Read the files of credentials, or return None if the server identifies no clients. Raises ConfigError."""
    if not settings.identity.are_set:
        return None
    with _as_config_error():
        return CredentialFiles(settings.identity, read_file)


@contextlib.contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except CredentialsError as error:
        raise ConfigError(str(error)) from None
