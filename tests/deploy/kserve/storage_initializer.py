"""Run KServe's storage initializer, in `.oip-clients`: it copies a storage URI to the path that the server reads."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.optional import cannot_run, find_oip_clients

# The entry point of the initializer's image calls this function in the same way.
_PROGRAM = "import sys; from kserve_storage import Storage; Storage.download_files(sys.argv[1::2], sys.argv[2::2])"


def initialize(uri: str, mount_path: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Copy `uri` to `mount_path` as the init container does before the server starts."""
    python = find_oip_clients() or cannot_run("there is no whole .oip-clients: make oip-clients")
    return subprocess.run(
        [python, "-c", _PROGRAM, uri, mount_path],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
