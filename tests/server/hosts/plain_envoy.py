"""A real Envoy without Python, which responds to every request itself."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.envoy import process as envoy_process
from tpuserve_server.hosts.envoy.config import Embedding, bootstrap

_ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}


def _config(options: HostOptions, admin: Path, filters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the product's configuration with a direct response instead of the application."""
    config = bootstrap(options, Embedding(Path("none"), "none:none"), admin)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [*filters, _ROUTER]
    [host] = manager["route_config"]["virtual_hosts"]
    host["routes"] = [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]
    return config


@contextmanager
def plain_envoy(options: HostOptions, folder: Path, filters: Sequence[dict[str, Any]] = ()) -> Iterator[Path]:
    """Start Envoy with these filters, and yield its admin socket."""
    admin = folder / "admin.sock"
    config = folder / "envoy.json"
    config.write_text(json.dumps(_config(options, admin, filters)))
    process = subprocess.Popen(
        [
            envoy_process.envoy_binary(),
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "-l",
            "off",
            "--config-path",
            config,
        ]
    )
    try:
        yield admin
    finally:
        process.kill()
        process.wait()
