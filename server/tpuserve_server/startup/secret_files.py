"""The files that decide about access, the key of TLS and the credentials of clients, and who else can reach them."""

import logging
from collections.abc import Mapping
from pathlib import Path

from tpuserve_server.startup.secret_file import describe_exposure
from tpuserve_server.startup.settings import Settings

logger = logging.getLogger(__name__)


def exposures(settings: Settings) -> Mapping[str, str]:
    """Return how other users can reach each of the files, by setting. Files that they cannot reach are omitted."""
    named = {
        "ssl_config_file": settings.listening.ssl_config_file,
        # It has digests of random keys, which may be read, and the other file has public keys.
        "credentials_file": settings.identity.credentials_file,
        "jwt_jwks_file": settings.identity.jwt_jwks_file,
    }
    found = {name: find_exposure(name, path) for name, path in named.items() if path is not None}
    return {name: exposure for name, exposure in found.items() if exposure}


def warn_of_exposed_files(settings: Settings) -> None:
    """Log a warning for each file that other users can reach.

    The server starts nevertheless, as TensorFlow Serving does: in a container, there may be no other user.
    """
    for name, exposure in exposures(settings).items():
        logger.warning("--%s: %s", name, exposure)


def find_exposure(name: str, path: Path) -> str:
    """Return how other users can reach the file of a setting, or "". Its reader reports a missing file."""
    try:
        return describe_exposure(path, is_secret=name == "ssl_config_file")
    except OSError:
        return ""
