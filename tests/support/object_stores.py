"""Object stores for tests: S3 by moto and GCS by its emulator, real servers on loopback in threads of this process."""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
from gcp_storage_emulator.server import create_server
from gcsfs.core import GCSFileSystem
from moto.server import ThreadedMotoServer

from tests.support.free_ports import free_ports

BUCKET = "tpuserve-bucket"
# Prevents any search for credentials at a metadata address.
NOWHERE = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
    "NO_GCE_CHECK": "true",
}


@dataclass
class RunningStore:
    """A store that a test can stop and restart at the same address with the same content."""

    scheme: str
    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    server: Any = None

    def start(self) -> None:
        if self.scheme == "s3":
            self.server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        else:
            self.server = create_server("127.0.0.1", self.port, data_dir=str(self.folder))
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point a server to the store."""
        where = "AWS_ENDPOINT_URL" if self.scheme == "s3" else "STORAGE_EMULATOR_HOST"
        return {**NOWHERE, where: f"http://127.0.0.1:{self.port}"}

    @functools.cached_property
    def files(self) -> Any:  # noqa: ANN401 - fsspec has no types
        """The store as an fsspec file system, for tests to write to."""
        options = {"skip_instance_cache": True, "use_listings_cache": False}
        return fsspec.filesystem("s3", **options) if self.scheme == "s3" else GCSFileSystem(token="anon", **options)

    def uri(self, path: str) -> str:
        return f"{self.scheme}://{BUCKET}/{path}"

    def put(self, path: str, content: bytes) -> None:
        self.files.pipe_file(f"{BUCKET}/{path}", content)

    def put_folder(self, folder: Path, path: str) -> None:
        """Upload every file below `folder`, in alphabetical order."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{path}/{file.relative_to(folder)}", file.read_bytes())

    def delete(self, path: str) -> None:
        """Delete everything below `path`."""
        for key in self.files.find(f"{BUCKET}/{path}"):
            self.files.rm_file(key)


@contextlib.contextmanager
def running_store(scheme: str, folder: Path) -> Iterator[RunningStore]:
    """Start a store with an empty bucket in `folder`, and point this process's environment to it."""
    store = RunningStore(scheme, folder)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in store.environment.items():
            environment.setenv(name, value)
        store.start()
        try:
            # moto's content is global in the process: a second store finds the first one's bucket.
            with contextlib.suppress(FileExistsError):
                store.files.mkdir(BUCKET)
            yield store
        finally:
            with contextlib.suppress(Exception):
                store.stop()
