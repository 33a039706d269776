"""Train the classifier in PyTorch, and save it in PyTorch's three usual formats.

    .torch/bin/python examples/torch_classifier/train.py --out .demo/torch
    .torch/bin/tpuserve export .demo/torch/checkpoint.pt .demo/models/torch_classifier \\
        --model examples.torch_classifier.model:build --input 'image:float32[batch,1,8,8]'

On a TPU the loop is the same on `torch_xla.device()`, with `torch_xla.sync()` after each step. `xm.save` writes the
same file, because it moves tensors to the CPU first.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from examples.digits.data import Digits, load
from examples.torch_classifier.model import Classifier, build

BATCH = 64


def images(digits: Digits) -> torch.Tensor:
    """Return images [rows, 1, 8, 8], because torch puts channels before pixels."""
    return torch.from_numpy(np.ascontiguousarray(digits.images.transpose(0, 3, 1, 2)))


def train(out: Path, epochs: int = 4, seed: int = 1) -> float:
    """Save checkpoint.pt, model.safetensors and model.pt2 in `out`. Return the accuracy on held-out digits."""
    torch.manual_seed(seed)
    training, held_out = load()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pictures, labels = images(training), torch.from_numpy(training.labels)
    step = 0
    for epoch in range(epochs):
        loss = torch.zeros(())
        for rows in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(model(pictures[rows])["probabilities"].clamp(min=1e-9).log(), labels[rows])
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch + 1:>2}/{epochs}  loss {float(loss.detach()):.4f}", flush=True)
    accuracy = measure(model, held_out)
    print(f"accuracy on {len(held_out.labels)} held-out digits: {accuracy:.4f}")
    save(out, model, optimizer, step)
    return accuracy


def measure(model: Classifier, digits: Digits) -> float:
    model.eval()
    with torch.no_grad():
        found = model(images(digits))["probabilities"].argmax(-1)
    return float((found == torch.from_numpy(digits.labels)).float().mean())


def save(out: Path, model: Classifier, optimizer: torch.optim.Optimizer, step: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(checkpoint, out / "checkpoint.pt")
    save_file(model.state_dict(), out / "model.safetensors")
    program = torch.export.export(model, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, out / "model.pt2")
    print(f"checkpoint.pt, model.safetensors and model.pt2 in {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the files. Created if missing.")
    parser.add_argument("--epochs", type=int, default=4, help="Number of epochs (default: 4).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of weights, shuffling and dropout (default: 1).")
    options = parser.parse_args()
    train(options.out, options.epochs, options.seed)


if __name__ == "__main__":
    main()
