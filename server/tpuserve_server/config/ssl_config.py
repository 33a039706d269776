"""--ssl_config_file: an SSLConfig on disk."""

from dataclasses import dataclass, field
from pathlib import Path

from tpuserve_formats.messages._proto.ssl_config_pb2 import SSLConfig
from tpuserve_server.config.text_format import ConfigError, read


@dataclass(frozen=True, slots=True)
class SslConfig:
    """PEM texts, not looked into. `client_ca` is None where clients need no certificate."""

    server_key: str = field(repr=False)
    server_cert: str = field(repr=False)
    client_ca: str | None = field(repr=False)


def read_ssl_config(path: Path) -> SslConfig:
    """What the file at `path` says. Blocking.

    As upstream (model_servers/server.cc), custom_ca counts only with client_verify. Upstream would take client_verify
    alone for "any public authority"; here that is an error, for nobody means it.

    Raises:
        ConfigError: It cannot be read, is no SSLConfig, or lacks what a server needs.
    """
    config = read(path, SSLConfig(), secret=True)
    needed = ["server_key", "server_cert", *(["custom_ca"] if config.client_verify else [])]
    if missing := [name for name in needed if not getattr(config, name)]:
        after = "; client_verify needs it" if missing == ["custom_ca"] else ""
        raise ConfigError(f"SSLConfig '{path}' has no {' and no '.join(missing)}{after}")
    client_ca = config.custom_ca if config.client_verify else None
    return SslConfig(config.server_key, config.server_cert, client_ca)
