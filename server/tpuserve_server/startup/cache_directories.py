"""The cache directories that flags name, and whether the server can write to a directory."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from tpuserve_server.hosts.errors import HostError
from tpuserve_server.startup.settings import Settings, flags

logger = logging.getLogger(__name__)


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
