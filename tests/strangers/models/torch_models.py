"""PyTorch models as saved by training: state_dict, safetensors, exported program; tied weights, bfloat16."""

import numpy as np
import torch
from safetensors.torch import save_file, save_model
from torch import nn

ROWS = np.random.default_rng(3).normal(0.3, 1.2, (5, 6)).astype(np.float32)
PICTURES = np.random.default_rng(4).normal(0.3, 1.2, (5, 3, 16, 16)).astype(np.float32)
IDS = np.random.default_rng(5).integers(1, 30, (5, 7))


class ConvNet(nn.Module):
    """Convolution, batch norm, dropout, two outputs."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.GroupNorm(2, 8), nn.SiLU())
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, image):
        x = self.stem(image)
        x = (x + self.block(x)).mean((2, 3))
        return {"logits": self.head(self.dropout(x)), "features": x}


class LanguageModel(nn.Module):
    """A model whose embedding and output layer share their weights."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.layers(self.words(ids)))


class Recurrent(nn.Module):
    """A bidirectional GRU of two layers, with its last state."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, steps):
        every, _ = self.gru(steps)
        return self.head(every[:, -1]), every


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x.to(torch.bfloat16)).softmax(-1)


class TwoTowers(nn.Module):
    """A model with several inputs of several dtypes."""

    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(30, 8, mode="mean")
        self.user = nn.Linear(6, 8)
        self.register_buffer("scale", torch.tensor(0.7))

    def forward(self, user, items, keep):
        score = (self.user(user) * self.items(items)).sum(-1) * self.scale
        return torch.where(keep, score, torch.full_like(score, -1.0)), keep.logical_not()


class Positions(nn.Module):
    """Learned positions, as every BERT has them: torch.arange takes its dtype from the size."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(30, 8), nn.Embedding(16, 8)

    def forward(self, ids):
        return {"hidden": self.words(ids) + self.positions(torch.arange(ids.shape[1]))}


class SlicedPositions(nn.Module):
    """Learned positions as a parameter and by a buffer of indices, both cut to the length of the input."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(30, 16), nn.Embedding(32, 16)
        self.shifts = nn.Parameter(torch.zeros(32, 16))
        self.register_buffer("indices", torch.arange(32)[None])
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        length = ids.shape[1]
        return self.head(torch.tanh(self.words(ids) + self.places(self.indices[:, :length]) + self.shifts[:length]))


def conv_net():
    return ConvNet()


def language_model():
    return LanguageModel()


def recurrent():
    return Recurrent()


def half():
    return Half().to(torch.bfloat16)


def average_not_started():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def two_towers():
    return TwoTowers()


def sliced_positions():
    return SlicedPositions()


def positions():
    return Positions()


def settle(model, *inputs):
    """Set weights and statistics that differ from those of a new model."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for _ in range(5):
            model(*(torch.from_numpy(one) for one in inputs))
    return model.eval()


def ask(model, names, inputs, outputs=("outputs",)):
    with torch.inference_mode():
        answer = model(*(torch.from_numpy(one) for one in inputs))
    if isinstance(answer, torch.Tensor):
        answer = (answer,)
    if not isinstance(answer, dict):
        answer = dict(zip(outputs, answer))
    answers = {name: value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
               for name, value in answer.items()}  # fmt: skip
    return {"serving_default": [(dict(zip(names, inputs)), answers)]}


def save_conv_net(folder):
    """Save a training loop's checkpoint, safetensors, and a program of torch.export."""
    model = settle(conv_net(), PICTURES)
    optimizer = torch.optim.Adam(model.parameters())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, folder / "checkpoint.pt")
    save_file(model.state_dict(), folder / "model.safetensors")
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.from_numpy(PICTURES),), dynamic_shapes={"image": {0: batch}})
    torch.export.save(program, folder / "model.pt2")
    return ask(model, ["image"], [PICTURES])


def save_language_model(folder):
    model = settle(language_model(), IDS)
    torch.save(model.state_dict(), folder / "model.pt")
    save_model(model, str(folder / "model.safetensors"))
    return ask(model, ["ids"], [IDS])


def save_sliced_positions(folder):
    model = settle(sliced_positions(), IDS)
    torch.save(model.state_dict(), folder / "model.pt")
    requests = [np.random.default_rng(length).integers(1, 30, (3, length)) for length in (1, 7, 8, 16)]
    return {"serving_default": [ask(model, ["ids"], [ids])["serving_default"][0] for ids in requests]}


def save_positions(folder):
    model = settle(positions(), IDS)
    torch.save(model.state_dict(), folder / "model.pt")
    return ask(model, ["ids"], [IDS])


def save_recurrent(folder):
    steps = np.random.default_rng(6).normal(0, 1, (5, 4, 6)).astype(np.float32)
    model = settle(recurrent(), steps)
    torch.save(model.state_dict(), folder / "model.pt")
    return ask(model, ["steps"], [steps], ["output_0", "output_1"])


def save_half(folder):
    model = settle(half(), ROWS)
    torch.save(model.state_dict(), folder / "model.pt")
    save_file(model.state_dict(), folder / "model.safetensors")
    with torch.inference_mode():
        answer = model(torch.from_numpy(ROWS)).float().numpy()
    import ml_dtypes

    return {"serving_default": [({"x": ROWS}, {"outputs": answer.astype(ml_dtypes.bfloat16)})]}


def save_average_not_started(folder):
    model = average_not_started()
    # The average starts later in the training. Until then it has the first weights.
    average = torch.optim.swa_utils.AveragedModel(model)
    model = settle(model, ROWS)
    torch.save({"model": model.state_dict(), "swa_model": average.state_dict(), "epoch": 3}, folder / "last.pt")
    with torch.inference_mode():
        return {"serving_default": [({"x": ROWS}, {"outputs": model(torch.from_numpy(ROWS)).numpy()})]}


def save_two_towers(folder):
    items = np.random.default_rng(8).integers(0, 30, (5, 4))
    keep = np.array([True, False, True, True, False])
    model = settle(two_towers(), ROWS, items, keep)
    torch.save(model.state_dict(), folder / "model.pt")
    return ask(model, ["user", "items", "keep"], [ROWS, items, keep], ["output_0", "output_1"])
