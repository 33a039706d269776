"""A deployment with a credentials file: its replicas refuse calls without a key over gRPC and HTTP."""

from pathlib import Path

from grpc import StatusCode
from tensorflow_serving.apis import get_model_status_pb2, predict_pb2

from tests.contract.serving_client import TIMEOUT_S, ServingClient, predict_request, refused
from tests.support.access import KeyFile
from tests.support.ray_cluster import GRPC, REST, TwoNodes, deploy

_PREDICT = "/v1/models/half:predict"
_BODY = {"instances": [[2.0]]}


def _predict(client: ServingClient, request: predict_pb2.PredictRequest, **headers: str) -> list[float]:
    response = client.prediction.Predict(request, timeout=TIMEOUT_S, metadata=tuple(headers.items()))
    return list(response.outputs["y"].float_val)


def test_replicas_refuse_clients_without_the_role(cluster: TwoNodes, root: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "credentials")
    keys.add("caller", "predict")
    keys.add("reader", "read")
    keys.add("shop", "predict", "other")
    flags = {"model_name": "half", "model_base_path": str(root / "half"), "credentials_file": str(keys.path)}
    deploy(flags)
    request = predict_request(x=[[2.0]])
    # Neither the size nor the content of a message counts before the credential.
    malformed = predict_request("half")
    malformed.inputs["x"].tensor_content = b"?"
    with ServingClient(GRPC, REST) as client:
        for unidentified in (request, malformed):
            with refused(StatusCode.UNAUTHENTICATED, "Predict needs a credential with the role predict"):
                _predict(client, unidentified)
        with refused(StatusCode.UNAUTHENTICATED, "unknown to this server"):
            _predict(client, request, authorization="Bearer tpuserve_unknown")
        with refused(StatusCode.PERMISSION_DENIED, "'reader' has the role read"):
            _predict(client, request, **keys.bearer("reader"))
        with refused(StatusCode.PERMISSION_DENIED, "'shop' may not use the model 'half'"):
            _predict(client, request, **keys.bearer("shop"))
        with refused(StatusCode.UNAUTHENTICATED, "needs a credential with the role read"):
            client.status(get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "half"}))
        assert _predict(client, request, **keys.bearer("caller")) == [4.0]
        assert client.post(_PREDICT, _BODY).status == 401
        assert client.post(_PREDICT, _BODY, **keys.bearer("reader")).status == 403
        assert client.get("/metrics").status == 401
        # A probe needs no key.
        assert client.get("/readyz").status == 200
        reply = client.post(_PREDICT, _BODY, **keys.bearer("caller"))
        assert (reply.status, reply.json) == (200, {"predictions": [[4.0]]})
