"""Checks of the files and directories that flags name: other users may not reach them, and the server can write."""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tpuserve_server.core.terms.storage import FILE_SCHEME, FileName, is_uri
from tpuserve_server.hosts.application import HostError
from tpuserve_server.startup.config_files import show_file
from tpuserve_server.startup.settings import Settings, flags

logger = logging.getLogger(__name__)

# Settings of files that contain the server's private key.
_WITH_KEY: Final = frozenset(("ssl_config_file", "tls_key_file"))


def exposures(settings: Settings) -> Mapping[str, str]:
    """Return how other users can reach each of the files, by setting. Files that they cannot reach are omitted."""
    certificates = settings.listening.certificate_files
    named = {
        **certificates,
        # It has digests of random keys, which may be read, and the other file has public keys.
        "credentials_file": settings.identity.credentials_file,
        "jwt_jwks_file": settings.identity.jwt_jwks_file,
    }
    found = {name: find_exposure(name, path) for name, path in named.items() if path is not None}
    for name in _WITH_KEY & certificates.keys():
        if is_uri(str(path := certificates[name])):
            found[name] = (
                f"'{show_file(path)}' is an object in a store, and has the private key. Every account that can read "
                "the object can pretend to be this server. Put the key in a file that only this user can read"
            )
    return {name: exposure for name, exposure in found.items() if exposure}


def warn_of_exposed_files(settings: Settings) -> None:
    """Log a warning for each file that other users can reach.

    The server starts nevertheless, as TensorFlow Serving does: in a container, there may be no other user.
    """
    for name, exposure in exposures(settings).items():
        logger.warning("--%s: %s", name, exposure)


def find_exposure(name: str, path: FileName) -> str:
    """Return how other users can reach the file of a setting, or "". Its reader reports a missing file.

    An object in a store has no permissions on this machine.
    """
    if is_uri(str(path)):
        return ""
    try:
        return describe_exposure(Path(str(path).removeprefix(FILE_SCHEME)), is_secret=name in _WITH_KEY)
    except OSError:
        return ""


def describe_exposure(path: Path, *, is_secret: bool = True) -> str:
    """Return how other users can replace a file or, if it is secret, read it, with the remedy, or "" if they cannot.

    A secret file that other users can read is not reported on a read-only mount. Kubernetes mounts Secrets read-only
    with mode 0644 or 0440, and only the containers that mount one can see it. Docker mounts secrets in the same way.

    Raises:
        OSError: the file does not exist, or this user may not look at it.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    if found.st_uid not in (0, os.geteuid()) and not is_read_only:
        return f"'{path}' belongs to another user (uid {found.st_uid}), who can replace it. Change its owner"
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_read_only:
        return f"Other users can replace '{path}' (mode {mode:04o}). Run: chmod go-w '{path}'"
    if is_secret and mode & stat.S_IROTH and not is_read_only:
        return f"Other users can read the secret in '{path}' (mode {mode:04o}). Run: chmod o= '{path}'"
    return ""


def is_open_to_others(directory: Path) -> bool:
    """Return whether any user of the machine may add files to a directory. False for a path that is no directory."""
    try:
        mode = directory.stat().st_mode
        return stat.S_ISDIR(mode) and bool(mode & stat.S_IWOTH) and not os.statvfs(directory).f_flag & os.ST_RDONLY
    except OSError:
        return False


def cache_directories(settings: Settings) -> Mapping[str, Path]:
    """Return the cache directories that flags name, by setting. The default directories are not among them."""
    values = settings.values()
    names = (flag.name for flag in flags() if flag.setting.is_cache)
    return {name: values[name] for name in names if values[name] is not None}


def warn_of_cache_directories(settings: Settings) -> None:
    """Log a warning for each cache directory that the server cannot write to.

    The server starts nevertheless, because another server may have filled the cache.
    """
    for name, directory in cache_directories(settings).items():
        try:
            check_directory(directory)
        except HostError as error:
            logger.warning("--%s: %s", name, error)


def check_directory(directory: Path) -> str:
    """Return a sentence if the server can write to a directory that exists or that it can create.

    Raises:
        HostError: the directory is a file or below one, or this user may not write to it.
    """
    directory = directory.absolute()
    existing = next(parent for parent in (directory, *directory.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise HostError(f"'{existing}' is not a directory. Choose another path.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise HostError(f"This user cannot write to '{existing}'. Change its mode, or choose another path.")
    return f"the server can write to '{directory}'"
