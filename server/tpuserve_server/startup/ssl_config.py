"""Reader of --ssl_config_file, an SSLConfig."""

from dataclasses import dataclass, field
from pathlib import Path

from tpuserve_formats.messages._proto.ssl_config_pb2 import SSLConfig
from tpuserve_server.startup.text_format import ConfigError, read


@dataclass(frozen=True, slots=True)
class SslConfig:
    """PEM texts, not validated. `client_ca` is None if clients need no certificate."""

    server_key: str = field(repr=False)
    server_cert: str = field(repr=False)
    client_ca: str | None = field(repr=False)


def read_ssl_config(path: Path) -> SslConfig:
    """Read the SSLConfig at `path`. Blocks.

    Like upstream (model_servers/server.cc), this ignores custom_ca without client_verify. Upstream accepts
    client_verify without custom_ca, and then trusts any public authority. This server reports an error instead, because
    an operator hardly intends that.

    Raises:
        ConfigError: the file cannot be read, is not an SSLConfig, or lacks a required field.
    """
    config = read(path, SSLConfig(), secret=True)
    needed = ["server_key", "server_cert", *(["custom_ca"] if config.client_verify else [])]
    if missing := [name for name in needed if not getattr(config, name)]:
        after = ", which client_verify requires" if missing == ["custom_ca"] else ""
        raise ConfigError(f"SSLConfig '{path}' lacks {' and '.join(missing)}{after}")
    client_ca = config.custom_ca if config.client_verify else None
    return SslConfig(config.server_key, config.server_cert, client_ca)
