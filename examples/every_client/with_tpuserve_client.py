"""Ask through tpuserve_client: TensorFlow Serving's protocol and the Open Inference Protocol, each over gRPC and REST.

.venv/bin/python -m examples.every_client.with_tpuserve_client GRPC_ADDRESS REST_ADDRESS
"""

from examples.every_client.question import INPUT, MEASURES, MODEL, Outputs, ask_all
from tpuserve_client import Client


def predict(address: str) -> Outputs:
    with Client(address) as client:
        return dict(client.predict(MODEL, {INPUT: MEASURES}))


if __name__ == "__main__":
    ask_all(
        {
            "tpuserve_client, gRPC": lambda server: predict(server.grpc),
            "tpuserve_client, REST": lambda server: predict(f"http://{server.rest}"),
            "tpuserve_client, oip+grpc": lambda server: predict(f"oip+grpc://{server.grpc}"),
            "tpuserve_client, oip+http": lambda server: predict(f"oip+http://{server.rest}"),
        }
    )
