"""Modules for the tests of PyTorch models, named on the command line as `tests.exporter.pytorch.modules:FUNCTION`."""

from typing import NamedTuple

import torch
from torch import nn


class Tiny(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module: `features` [batch, 3] → [batch, 2]."""

    def __init__(self, units: int = 4) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, units)
        self.norm = nn.BatchNorm1d(units)
        self.scores = nn.Linear(units, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.scores(torch.relu(self.norm(self.hidden(features))))


def tiny(units: int = 4) -> Tiny:
    return Tiny(units)


def tiny_with_extra() -> Tiny:
    model = Tiny()
    model.extra = nn.Linear(2, 2)
    return model


class Pooled(NamedTuple):
    """The outputs of `Encoder`."""

    pooled: torch.Tensor
    longest: torch.Tensor


class Encoder(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module with a mask: `ids` and `mask` int64 [batch, length] → a float and an integer per row."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Pooled:
        hidden = self.layers(self.words(ids), src_key_padding_mask=mask == 0) * mask.unsqueeze(-1)
        return Pooled(hidden.sum(1) / mask.sum(1, keepdim=True).clamp(min=1), mask.sum(1))


class Positions(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module with a table of 20 positions, cut or looked up: `ids` int64 [batch, length] → [batch, 4]."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 4)
        self.places = nn.Embedding(20, 4)
        self.cut = cut

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        places = self.places.weight[:length] if self.cut else self.places(torch.arange(length))
        return (self.words(ids) + places).mean(1)


class Recurrent(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module: `x` float32 [batch, 5, 4] → scores and state, both with rows first."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps, (state, _) = self.lstm(x)
        return steps[:, -1], state.transpose(0, 1)


class Bag(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module: `items` int64 [batch, 6] → [batch, 3]. Item 0 is padding."""

    def __init__(self, mode: str = "mean") -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode=mode, padding_idx=0)
        self.scores = nn.Linear(8, 3)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.scores(self.bag(items))


class RowByRow(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module with a Python loop over rows, so that a program has a fixed number of rows: `x` [batch, 3] → [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row @ self.weights for row in x])


class Branching(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module that branches on its values, which a graph cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale if x.sum() > 0 else -x


class Noisy(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module whose dropout ignores eval()."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x * self.scale, 0.5)


class Unsupported(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module with an operation that torchax lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x * self.scale)


def noisy() -> Noisy:
    return Noisy()


def branching() -> Branching:
    return Branching()


def unsupported() -> Unsupported:
    return Unsupported()


def encoder() -> Encoder:
    return Encoder()


def recurrent() -> Recurrent:
    return Recurrent()


def bag(mode: str = "mean") -> Bag:
    return Bag(mode)


def row_by_row() -> RowByRow:
    return RowByRow()
