"""The torch model that `python -m benchmarks export_memory` exports, named on the exporter's command line."""

import sys
from pathlib import Path

import torch
from torch import nn

_UNITS = 8192
_LAYERS = 8


def wide() -> nn.Module:
    """Build `input` [batch, 8192] → [batch, 8], like `models.wide`: 2.1 GB of float32."""
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(_UNITS, _UNITS), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(_UNITS, 8))


def save(directory: Path) -> None:
    """Save a state_dict with torch.save, like training does."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(wide().state_dict(), directory / "wide.pt")


if __name__ == "__main__":
    save(Path(sys.argv[1]))
