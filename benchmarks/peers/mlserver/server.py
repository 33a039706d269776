"""MLServer with a custom runtime and adaptive batching. Arguments: MODEL_DIR HTTP_PORT GRPC_PORT."""

import asyncio
import sys

import saved_model
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor


class Mlp(MLModel):
    """The SavedModel."""

    async def load(self) -> bool:
        self._predict = saved_model.load(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        y = NumpyCodec.encode_output(saved_model.OUTPUT, self._predict(x))
        return InferenceResponse(model_name=self.name, outputs=[y])


async def serve(directory: str, http_port: int, grpc_port: int) -> None:
    settings = Settings(
        host="127.0.0.1",
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_endpoint=None,
        # Run in process. A separate worker is for models that hold the GIL, and slower here.
        parallel_workers=0,
        debug=False,
        use_structured_logging=False,
    )
    model = ModelSettings(
        name=saved_model.NAME,
        implementation=Mlp,
        inputs=[MetadataTensor(name=saved_model.INPUT, datatype="FP32", shape=[-1, saved_model.FEATURES])],
        outputs=[MetadataTensor(name=saved_model.OUTPUT, datatype="FP32", shape=[-1, saved_model.CLASSES])],
        parameters=ModelParameters(uri=directory),
        max_batch_size=saved_model.MAX_BATCH,
        max_batch_time=0.001,
    )
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
