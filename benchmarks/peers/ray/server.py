"""Ray Serve: one replica that batches, behind one proxy. Arguments: MODEL_DIR HTTP_PORT. Use only with loopback."""

import sys
import threading

import numpy as np
import ray
import saved_model
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0})
class Mlp:
    """The SavedModel."""

    def __init__(self, directory: str) -> None:
        self._predict = saved_model.load(directory)

    @serve.batch(max_batch_size=saved_model.MAX_BATCH, batch_wait_timeout_s=0.001)
    async def predict(self, rows: list[saved_model.Floats]) -> list[list[float]]:
        return self._predict(np.stack(rows)).tolist()

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        body = await request.json()
        return {"y": await self.predict(np.asarray(body["x"], np.float32))}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=100_000_000)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[2])}, logging_config={"enable_access_log": False}
    )
    serve.run(Mlp.bind(sys.argv[1]), name=saved_model.NAME, route_prefix="/predict")
    threading.Event().wait()
