"""The destination of versions on the command line: a directory, or a path in an object store."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tpuserve_exporter.errors import OptionConflict

# The extra of this distribution that each scheme needs.
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
_URI = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<bucket>[^/]*)/*(?P<path>.*)")


@dataclass(frozen=True, slots=True)
class StoreUri:
    """`scheme://bucket/path`. `path` has no slash at either end."""

    scheme: str
    bucket: str
    path: str

    @property
    def name(self) -> str:
        """The last part of the path. For a base path, this is the model's name."""
        return self.path.rpartition("/")[2]

    @property
    def key(self) -> str:
        """The key that fsspec uses: `bucket/path`."""
        return f"{self.bucket}/{self.path}"

    def __truediv__(self, part: str) -> "StoreUri":
        return StoreUri(self.scheme, self.bucket, f"{self.path}/{part}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"


OutBase: TypeAlias = Path | StoreUri


def parse_out_base(text: str) -> OutBase:
    """Parse a URI, or a directory if the text has no scheme. Raises OptionConflict for an unsupported scheme or URI."""
    match = _URI.fullmatch(text)
    if match is None:
        return Path(text)
    scheme, path = match["scheme"].lower(), match["path"].strip("/")
    if scheme not in EXTRAS:
        raise OptionConflict(f"cannot publish to {text}. Use a directory, gs:// or s3:// instead of {scheme}://")
    if not match["bucket"] or not path:
        raise OptionConflict(f"{text} names no folder for the model. Use {scheme}://BUCKET/PATH/MODEL")
    return StoreUri(scheme, match["bucket"], path)


def parse_gs_uri(text: str) -> StoreUri:
    """Parse `gs://BUCKET/PATH`. Raises OptionConflict for any other text."""
    found = parse_out_base(text) if "://" in text else None
    if not isinstance(found, StoreUri) or found.scheme != "gs":
        raise OptionConflict(f"{text!r} is not in Cloud Storage. Write gs://BUCKET/PATH/MODEL/VERSION")
    return found
