"""Permissions of a file that must be safe from other users of the machine: they may not replace it, or not read it."""

import os
import stat
from pathlib import Path


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
