"""PyTorch models: state_dict, safetensors, `.pt2`, tied weights, bfloat16."""

from tests.strangers.stranger import BFLOAT16, Export, Stranger, Tolerance

MODELS = "tests.strangers.models.torch_models"
BATCH_SIZES = ("--batch-sizes", "1,8")
DEFAULT = Tolerance()


def _stranger(
    name: str, inputs: tuple[str, ...], *paths: str, tolerance: Tolerance = DEFAULT, options: tuple[str, ...] = ()
) -> Stranger:
    options = (*(part for one in inputs for part in ("--input", one)), *options)
    built = ("--model", f"{MODELS}:{name}", *options, *BATCH_SIZES)
    exports = tuple(
        Export(f".{path.rpartition('.')[2]}", path, BATCH_SIZES if path.endswith(".pt2") else built) for path in paths
    )
    return Stranger(f"torch_{name}", f"{MODELS}:save_{name}", exports, torch=True, tolerance=tolerance)


STRANGERS = (
    _stranger("conv_net", ("image:float32[batch,3,16,16]",), "checkpoint.pt", "model.safetensors", "model.pt2"),
    _stranger("language_model", ("ids:int64[batch,7]",), "model.pt", "model.safetensors"),
    _stranger("sliced_positions", ("ids:int64[batch,length]",), "model.pt", options=("--sequence-buckets", "8,16")),
    _stranger("positions", ("ids:int64[batch,7]",), "model.pt"),
    _stranger("recurrent", ("steps:float32[batch,4,6]",), "model.pt"),
    _stranger("half", ("x:float32[batch,6]",), "model.pt", "model.safetensors", tolerance=BFLOAT16),
    _stranger("average_not_started", ("x:float32[batch,6]",), "last.pt"),
    _stranger("two_towers", ("user:float32[batch,6]", "items:int64[batch,4]", "keep:bool[batch]"), "model.pt"),
)
