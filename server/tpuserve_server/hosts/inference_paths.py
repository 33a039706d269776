"""Names of the methods and paths that wait for a device. Light imports only, as the supervisor needs them.

Aliases, as on Vertex AI, are not among them.
"""

from typing import Final

_PREDICTION = "/tensorflow.serving.PredictionService"
INFERENCE_METHODS: Final = frozenset(
    {
        f"{_PREDICTION}/Predict",
        f"{_PREDICTION}/Classify",
        f"{_PREDICTION}/Regress",
        f"{_PREDICTION}/MultiInference",
        "/inference.GRPCInferenceService/ModelInfer",
    }
)
# Ends of REST paths.
INFERENCE_ENDS: Final = (":predict", ":classify", ":regress", "/infer")
OVERLOADED: Final = "The server is overloaded and would answer this request after its deadline"
