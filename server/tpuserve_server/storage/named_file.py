"""Content of a file that a flag names: on this machine, or an object in a store."""

import errno
import os
from pathlib import Path

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.storage import FILE_SCHEME, FileName, is_uri
from tpuserve_server.storage.object_store import store_of


def read_file(name: FileName, max_bytes: int) -> bytes:
    """Return the content of the file. Blocks on the disk or the store.

    Raises:
        OSError: the file cannot be read, or it has more than `max_bytes` bytes. The reason is for an operator, and does
            not contain the name.
    """
    content = _read_object(str(name), max_bytes) if is_uri(str(name)) else _read_local(str(name), max_bytes)
    if len(content) > max_bytes:
        raise OSError(f"it has more than {max_bytes >> 20} MiB")
    return content


def _read_local(name: str, max_bytes: int) -> bytes:
    path = Path(name.removeprefix(FILE_SCHEME))
    if name.startswith(FILE_SCHEME) and not path.is_absolute():
        raise OSError("its path is relative. Write an absolute path, such as file:///config/models.config")
    # Opening a named pipe blocks until another process writes to it.
    if path.is_fifo():
        raise OSError("it is a named pipe. Use a regular file")
    with path.open("rb") as file:
        return file.read(max_bytes + 1)


def _read_object(uri: str, max_bytes: int) -> bytes:
    try:
        content = store_of(uri).read_file(uri, max_bytes)
    except ServingError as error:
        raise OSError(error.message) from error
    if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return content
