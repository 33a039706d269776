"""The classifier for training and, with `--model examples.torch_classifier.model:build`, for `tpuserve export`."""

import torch
from torch import nn


class Classifier(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """`image` float32 [batch, 1, 8, 8], from 0 to 1 → `probabilities` [batch, 10] and `embedding` [batch, 32]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.embedding = nn.Linear(2 * width * 16, 32)
        self.dropout = nn.Dropout(0.25)
        self.logits = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        embedding = torch.relu(self.embedding(self.features(image).flatten(1)))
        return {"probabilities": torch.softmax(self.logits(self.dropout(embedding)), -1), "embedding": embedding}


def build(width: int = 16) -> Classifier:
    return Classifier(width)
