"""URIs of base paths, such as gs://bucket/model. A `file://` path is a local directory, as in TensorFlow."""

from typing import Final

FILE_SCHEME: Final = "file://"


def is_uri(path: str) -> bool:
    """Return whether a base path is in a store."""
    return "://" in path and not path.startswith(FILE_SCHEME)
