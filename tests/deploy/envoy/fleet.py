"""Servers of one small model for tests behind Envoy. They start in a second or two, because LiteRT runs it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.tflite_models import half_plus_two, save
from tpuserve_client import Client

MODEL: Final = "half"
# A model whose only version is not a model.
BROKEN: Final = "broken"
_MODELS: Final = """model_config_list {{
  config {{
    name: "{model}" base_path: "{folder}/{model}" model_platform: "tensorflow"
    version_labels {{ key: "stable" value: 1 }} version_labels {{ key: "canary" value: 1 }}
  }}
  config {{ name: "{broken}" base_path: "{folder}/{broken}" model_platform: "tensorflow" }}
}}
"""


@dataclass(frozen=True, slots=True)
class Models:
    """The directory with the models, their configuration, and the servers' logs."""

    folder: Path

    @classmethod
    def write(cls, folder: Path) -> "Models":
        """Write both models."""
        save(folder / MODEL / "1", half_plus_two())
        save(folder / BROKEN / "1", b"not a model")
        (folder / "models.config").write_text(_MODELS.format(folder=folder, model=MODEL, broken=BROKEN))
        return cls(folder)

    @contextlib.contextmanager
    def serve(self, name: str, *flags: str) -> Iterator[RunningServer]:
        """Start a server, wait until the model is ready, and stop the server after the body."""
        all_flags = (
            f"--model_config_file={self.folder / 'models.config'}", "--prefer_tflite_model", "--device=cpu",
            "--max_num_load_retries=0", "--tensorflow_intra_op_parallelism=1", *flags,
        )  # fmt: skip
        with run_configured_server(self.folder / f"{name}.log", *all_flags, model=MODEL) as server:
            yield server


def check_predict(client: Client, number: int, **options: object) -> None:
    """Send one request and check its response."""
    x = np.array([[number]], np.float32)
    (y,) = client.predict(MODEL, {"serving_default_x": x}, **options).outputs.values()  # type: ignore[arg-type]  # the caller's
    assert y.tolist() == [[number / 2 + 2]]
