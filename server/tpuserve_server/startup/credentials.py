"""The files of credentials, as the settings name them. Light imports only: the supervisor checks them, too."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tpuserve_server.access.credentials import CredentialsError, parse_credentials
from tpuserve_server.access.files import CredentialFiles, read_text
from tpuserve_server.access.jwks import parse_jwks
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.text_format import ConfigError


def check_credentials(path: Path) -> None:
    """Check a credentials file. Raises ConfigError."""
    with _as_config_error():
        parse_credentials(read_text(path))


def check_jwks(path: Path) -> None:
    """Check a JWKS file. Raises ConfigError."""
    with _as_config_error():
        parse_jwks(read_text(path))


def open_credentials(settings: Settings) -> CredentialFiles | None:
    """Read the files of credentials, or return None if the server identifies no clients. Raises ConfigError."""
    if not settings.identity.are_set:
        return None
    with _as_config_error():
        return CredentialFiles(settings.identity)


@contextlib.contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except CredentialsError as error:
        raise ConfigError(str(error)) from None
