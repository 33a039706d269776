"""Configuration files in protobuf's text format: models, batching, monitoring and TLS."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from google.protobuf import text_format

from tests.fuzz.target import Target, expect
from tpuserve_formats.messages.model_server_config import ModelServerConfig
from tpuserve_server.startup.config_files import (
    ConfigError,
    parse,
    read_batching_parameters,
    read_metrics_path,
    read_text,
)
from tpuserve_server.startup.listening import read_ssl_config
from tpuserve_server.startup.model_config_file import ModelConfigFile

# By the first byte of an input, so that corpus files are readable.
_READERS: dict[bytes, Callable[[Path], object]] = {
    b"m": lambda path: ModelConfigFile(path, poll_wait_s=0).read(),
    b"b": read_batching_parameters,
    b"p": read_metrics_path,
    b"s": read_ssl_config,
}
_IN_ORDER = tuple(_READERS.values())


def run(data: bytes) -> bool:
    """Read a file. The first byte selects its kind."""
    read = _READERS.get(data[:1]) or _IN_ORDER[ord(data[:1] or b"0") % len(_IN_ORDER)]
    with tempfile.NamedTemporaryFile() as file:
        file.write(data[1:])
        file.flush()
        path = Path(file.name)
        try:
            read(path)
            if read is _READERS[b"m"]:
                _check_round_trip(path)
        except ConfigError as error:
            expect("\n" not in str(error), f"more than one line: {error}")
            expect(str(path) in str(error), f"no path: {error}")
            return False
    return True


def _check_round_trip(path: Path) -> None:
    config = parse(read_text(path), ModelServerConfig(), path)
    again = parse(text_format.MessageToString(config), ModelServerConfig(), path)
    expect(config == again or "nan" in str(config), "the written text reads differently")


TARGET = Target(
    run,
    max_bytes=1024,
    words=(
        b"model_config_list", b"config {", b'name: "m"', b'base_path: "/m"', b'model_platform: "tensorflow"',
        b"model_version_policy", b"specific { versions: 1 }", b"version_labels { key: ", b"logging_config",
        b"batching_parameters {", b"max_batch_size { value: 4 }", b"response_cache { max_bytes: 1 }",
        b"ensemble_scheduling {", b"step {", b"prometheus_config {", b"enable: true", b'path: "/m"',
        b'server_key: "k"', b'server_cert: "c"', b"client_verify: true", b"allowed_batch_sizes: 4",
    ),
)  # fmt: skip
