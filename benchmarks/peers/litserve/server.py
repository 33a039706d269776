"""LitServe with one worker and batching. Arguments: MODEL_DIR HTTP_PORT."""

import sys
from typing import Any

import litserve
import numpy as np
import saved_model


class Mlp(litserve.LitAPI):
    """The SavedModel. LitServe's own batch and unbatch stack and split the rows."""

    def __init__(self, directory: str) -> None:
        super().__init__(max_batch_size=saved_model.MAX_BATCH, batch_timeout=0.001, api_path="/predict")
        self._directory = directory

    def setup(self, device: str) -> None:
        self._predict = saved_model.load(self._directory)

    def decode_request(self, request: dict[str, Any]) -> saved_model.Floats:
        return np.asarray(request["x"], np.float32)

    def predict(self, x: saved_model.Floats) -> saved_model.Floats:
        return self._predict(x)

    def encode_response(self, output: saved_model.Floats) -> dict[str, list[float]]:
        return {"y": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Mlp(sys.argv[1]), accelerator="cpu", workers_per_device=1, timeout=30)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, generate_client_file=False, access_log=False)
