"""NVIDIA Triton through PyTriton: a Python function behind the dynamic batcher. Arguments: MODEL_DIR HTTP_PORT
GRPC_PORT.
"""

import sys

import numpy as np
import saved_model
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def main(directory: str, http_port: int, grpc_port: int) -> None:
    predict = saved_model.load(directory)

    @batch
    def infer(x: saved_model.Floats) -> list[saved_model.Floats]:
        return [predict(x)]

    triton = TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        allow_metrics=False,
        log_verbose=0,
    )
    config = ModelConfig(
        batching=True,
        max_batch_size=saved_model.MAX_BATCH,
        # Run pending requests as soon as the model is free: Triton's default, and the fastest here.
        batcher=DynamicBatcher(max_queue_delay_microseconds=0),
    )
    with Triton(config=triton) as server:
        server.bind(
            model_name=saved_model.NAME,
            infer_func=infer,
            inputs=[Tensor(name=saved_model.INPUT, dtype=np.float32, shape=(saved_model.FEATURES,))],
            outputs=[Tensor(name=saved_model.OUTPUT, dtype=np.float32, shape=(saved_model.CLASSES,))],
            config=config,
        )
        server.serve()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
