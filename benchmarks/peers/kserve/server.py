"""KServe's Python SDK, without batching. Arguments: MODEL_DIR HTTP_PORT GRPC_PORT."""

import logging
import sys
from typing import Any

import kserve
import numpy as np
import saved_model
from kserve import InferOutput, InferRequest, InferResponse


class Mlp(kserve.Model):
    """The SavedModel for protocol v1 (a dict) and v2 (an InferRequest)."""

    def __init__(self, directory: str) -> None:
        super().__init__(saved_model.NAME)
        self._predict = saved_model.load(directory)
        self.ready = True

    async def predict(
        self,
        payload: dict[str, Any] | InferRequest,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> dict[str, Any] | InferResponse:
        if isinstance(payload, InferRequest):
            y = self._predict(payload.inputs[0].as_numpy())
            output = InferOutput(saved_model.OUTPUT, list(y.shape), "FP32")
            output.set_data_from_numpy(y, binary_data=True)
            # JSON, unless the request wants binary outputs, as a gRPC request with raw contents does.
            # A response over HTTP needs an id, even if the request has none.
            answer_id = payload.id or ""
            return InferResponse(answer_id, self.name, [output], use_binary_outputs=payload.use_binary_outputs)
        x = np.asarray(payload["instances"], np.float32)
        return {"predictions": self._predict(x).tolist()}


if __name__ == "__main__":
    http_port, grpc_port = sys.argv[2:4]
    server = kserve.ModelServer(
        http_port=int(http_port),
        grpc_port=int(grpc_port),
        workers=1,
        access_log_format=None,
        enable_latency_logging=False,
    )
    logging.disable(logging.INFO)
    server.start([Mlp(sys.argv[1])])
