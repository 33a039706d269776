"""BentoML server: one service, one worker, adaptive batching. Arguments: MODEL_DIR HTTP_PORT. Runs `bentoml serve`."""

import os
import sys

import bentoml
import numpy as np
import saved_model


@bentoml.service(workers=1, traffic={"timeout": 30, "max_concurrency": 1024}, logging={"access": {"enabled": False}})
class Mlp:
    """The SavedModel."""

    def __init__(self) -> None:
        self._predict = saved_model.load(os.environ["MODEL_DIRECTORY"])

    # No fixed wait. BentoML refuses requests above max_latency_ms, so it is far above the usual latency.
    @bentoml.api(batchable=True, max_batch_size=saved_model.MAX_BATCH, max_latency_ms=10_000)
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self._predict(x.astype(np.float32))


if __name__ == "__main__":
    os.environ["MODEL_DIRECTORY"] = sys.argv[1]
    here = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, "-m", "bentoml", "serve", "server:Mlp", "--working-dir", here]
    os.execv(sys.executable, [*command, "--host", "127.0.0.1", "--port", sys.argv[2]])
