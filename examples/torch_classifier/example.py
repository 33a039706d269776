"""A CNN in PyTorch: a training loop's checkpoint with weights, optimizer state and step."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.torch_classifier.train import train

    train(folder)
    return folder / "checkpoint.pt"


def requests() -> list[dict[str, Array]]:
    """Return one digit, and 21 digits, a number without a bucket."""
    from examples.digits.data import load

    held_out = load()[1].images.transpose(0, 3, 1, 2)
    return [{"image": held_out[:1].copy()}, {"image": held_out[:21].copy()}]


def answer(source: Path, request: Tensors) -> Tensors:
    import torch

    from examples.torch_classifier.model import build

    model = build()
    model.load_state_dict(torch.load(source, weights_only=True)["model"])
    with torch.no_grad():
        outputs = model.eval()(torch.from_numpy(request["image"]))
    return {name: value.numpy() for name, value in outputs.items()}


EXAMPLE = Example(
    name="torch_classifier",
    source="PyTorch state_dict",
    train=train,
    requests=requests,
    answer=answer,
    export_options=(
        "--model", "examples.torch_classifier.model:build",
        "--input", "image:float32[batch,1,8,8]",
    ),
    extra="torch",
    packages=("torch", "torchax", "safetensors", "jax"),
)  # fmt: skip
