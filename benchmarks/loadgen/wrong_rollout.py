"""Rollouts to versions that only a load unmasks: the rows of `loadtest truth` with a real server."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.loadgen.findings import Environment, Seen
from tests.e2e.running_server import RunningServer, run_configured_server
from tpuserve_client import Client

LIVE, NEW = 1, 2
_X: Final = np.ones((1, 4), np.float32)
_USERS: Final = 8
_CONFIG: Final = """\
model_config_list {{ config {{
  name: "m" base_path: "{root}/m" model_platform: "tensorflow"
  model_version_policy {{ all {{}} }}
  version_labels {{ key: "stable" value: 1 }}
}} }}
"""
# Requests wait for a batch, so that requests in flight share it.
_BATCHING: Final = """\
max_batch_size {{ value: 8 }} batch_timeout_micros {{ value: 20000 }} max_enqueued_batches {{ value: 100 }}
"""
_OPTIONS: Final = (
    *("--rounds", "6", "--duration", "2s", "--warm-up", "200ms", "--generator-limit", "note"),
    *("--least-effect", "2", "--unclear", "note", "--soak", "10s", "--segments", "20", "--json"),
)


def wrong_under_load(environment: Environment) -> Seen:
    """Roll out a version that is wrong above two requests in flight, and report the version that is live at the end."""
    with _serving(wrong_above=2) as (server, file):
        record = _share_of_wrong_answers(server)
        done, document = _roll_out(environment, server, file)
        with Client(server.grpc) as client:
            live = client.predict("m", {"x": _X}, label="stable").version
    words = f"version {live} is live; {_failure(document)}"
    return Seen(record, words, done.returncode, live == LIVE and done.returncode == 1)


def missed_gate(environment: Environment) -> Seen:
    """Roll out a version that misses a gate, and report whether a label moved before a load had seen it."""
    with _serving(wrong_above=1000) as (server, file):
        done, document = _roll_out(environment, server, file, "--fail-if", "p50>1ms")
    names = [step["name"] for step in document.get("steps", ()) if step["state"] in ("passed", "failed")]
    moves = [name for name in names if name.startswith("label ")]
    words = f"moved {', '.join(moves) or 'no label'}; {_failure(document)}"
    return Seen("p50 above 20 ms", words, done.returncode, not moves and done.returncode == 99)


def _roll_out(
    environment: Environment, server: RunningServer, file: Path, *options: str
) -> tuple["subprocess.CompletedProcess[str]", dict[str, Any]]:
    command = [str(environment.python.with_name("tpuserve-rollout")), "m", "--to", str(NEW), "--execute"]
    command += ["--model_config_file", str(file), "--grpc", server.grpc, "--rest", server.rest, *_OPTIONS, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    return done, json.loads(done.stdout or "{}")


def _failure(document: dict[str, Any]) -> str:
    """Return the name and the detail of the step that failed."""
    steps = document.get("steps", ())
    return next(
        (f"{step['name']}: {step['detail'][:200]}" for step in steps if step["state"] == "failed"), "no step failed"
    )


@contextmanager
def _serving(wrong_above: int) -> Iterator[tuple[RunningServer, Path]]:
    # TensorFlow takes seconds to import, and the other rows do without it.
    import tensorflow as tf

    from tests.support.saved_models import save_function

    def wrong_together(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": 2 * x + 0.1 * tf.cast(tf.shape(x)[0] > wrong_above, tf.float32)}

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        spec = tf.TensorSpec([None, 4], tf.float32, "x")
        save_function(root / "m" / str(LIVE), lambda x: {"y": 2 * x}, spec)
        save_function(root / "m" / str(NEW), wrong_together, spec)
        file, batching = root / "models.config", root / "batching.config"
        file.write_text(_CONFIG.format(root=root))
        batching.write_text(_BATCHING.format())
        flags = (f"--model_config_file={file}", "--enable_batching", f"--batching_parameters_file={batching}")
        with run_configured_server(root / "log", *flags, model="m") as server, Client(server.grpc) as client:
            for version in (LIVE, NEW):
                client.wait_until_ready(90, "m", version=version)
            yield server, file


def _share_of_wrong_answers(server: RunningServer) -> str:
    """Describe version 2's answers to requests alone, and to several in flight."""
    with Client(server.grpc) as client:

        def is_wrong(number: int) -> bool:
            return not np.allclose(client.predict("m", {"x": _X}, version=NEW)["y"], 2 * _X)

        alone = sum(map(is_wrong, range(50)))
        with ThreadPoolExecutor(_USERS) as threads:
            together = sum(threads.map(is_wrong, range(400)))
    return f"wrong answers of version 2: {alone} of 50 alone, {together} of 400 with {_USERS} in flight"
