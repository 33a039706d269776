"""PyTorch models of public reports: names of wrappers, programs of one batch size, training mode, adapters."""

import json

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

ROWS = np.random.default_rng(3).normal(0.3, 1.2, (5, 6)).astype(np.float32)
PICTURES = np.random.default_rng(4).normal(0.3, 1.2, (5, 3, 8, 8)).astype(np.float32)
IDS = np.random.default_rng(5).integers(2, 30, (5, 7))


def settle(model, *inputs):
    """Set weights and statistics that differ from those of a new model."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        model.train()
        model(*(torch.from_numpy(one) for one in inputs))
    return model.eval()


def ask(model, name, value, output="outputs"):
    with torch.inference_mode():
        answer = model(torch.from_numpy(value))
    return {"serving_default": [({name: value}, {output: answer.numpy()})]}


class Residual(nn.Module):
    """A block of ResNet with a dropout."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.pool, self.dropout, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Dropout(0.4), nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(x + self.block(x))
        return self.fc(self.dropout(torch.flatten(self.pool(x), 1)))


def residual():
    return Residual()


def save_wrapped(folder):
    """Save the names that torch.compile, DistributedDataParallel, and both together give."""
    model = settle(residual(), PICTURES)
    compiled = torch.compile(model).state_dict()
    torch.save({"model": compiled, "iter_num": 3, "config": {"compile": True}}, folder / "compiled.pt")
    torch.save({f"module.{name}": value for name, value in compiled.items()}, folder / "distributed.pt")
    inner = {name.replace("_orig_mod.", "_orig_mod.module."): value for name, value in compiled.items()}
    torch.save({"state_dict": inner}, folder / "inner.pt")
    return ask(model, "x", PICTURES)


def save_program(folder):
    """Save programs of any number of rows: of evaluation, and of the training mode."""
    model = settle(residual(), PICTURES)
    batch, two = torch.export.Dim.AUTO, torch.from_numpy(PICTURES[:2])
    torch.export.save(torch.export.export(model, (two,), dynamic_shapes=({0: batch},)), folder / "free.pt2")
    answers = ask(model, "x", PICTURES)
    training = torch.export.export(model.train(), (two,), dynamic_shapes=({0: batch},))
    torch.export.save(training, folder / "training.pt2")
    return answers


def save_program_of_one_row(folder):
    """Save a program whose example has one row, which torch.export makes constant."""
    model = settle(residual(), PICTURES)
    program = torch.export.export(
        model, (torch.from_numpy(PICTURES[:1]),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    torch.export.save(program, folder / "one.pt2")
    return ask(model, "x", PICTURES[1:2])


class Weighted(nn.Module):
    """A convolution with weight norm, and a batch norm."""

    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 4, 3, padding=1))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x[:, None]))).flatten(1))


def weighted():
    return Weighted()


def save_weighted(folder):
    """Save weight_g and weight_v, the names of the weight norm before PyTorch 2.1, and the names of today."""
    model = settle(weighted(), ROWS)
    torch.save(model.state_dict(), folder / "new.pt")
    now = model.state_dict()
    old = {
        name.replace("parametrizations.weight.original0", "weight_g").replace("parametrizations.weight.original1",
                                                                             "weight_v"): value
        for name, value in now.items()
    }  # fmt: skip
    torch.save(old, folder / "old.pt")
    save_file(old, folder / "old.safetensors")
    return ask(model, "x", ROWS)


class Untracked(nn.Module):
    """A batch norm without running statistics, which normalizes by the batch in evaluation, too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


def untracked():
    return Untracked()


def save_untracked(folder):
    model = settle(untracked(), ROWS)
    torch.save(model.state_dict(), folder / "model.pt")
    return ask(model, "x", ROWS)


def opt():
    return transformers.OPTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32,
        vocab_size=30, max_position_embeddings=16, word_embed_proj_dim=16, dropout=0.1)  # fmt: skip


def save_tied(folder):
    """Save a language model whose file has the output layer, and not the embedding that shares its weights."""
    model = settle(transformers.OPTForCausalLM(opt()), IDS)
    model.save_pretrained(folder / "opt")
    tensors = load_file(folder / "opt" / "model.safetensors")
    (embedding,) = [name for name in tensors if name.endswith("embed_tokens.weight")]
    tensors["lm_head.weight"] = tensors.pop(embedding)
    save_file(tensors, folder / "opt" / "model.safetensors", {"format": "pt"})
    mask = np.ones_like(IDS)
    with torch.inference_mode():
        answer = model(torch.from_numpy(IDS), attention_mask=torch.from_numpy(mask)).logits.numpy()
    return {"serving_default": [({"input_ids": IDS, "attention_mask": mask}, {"logits": answer})]}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.q_proj, self.out = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids):
        return self.out(torch.tanh(self.q_proj(self.body(ids).mean(1))))


def head():
    return Head()


def save_adapter(folder):
    """Save LoRA in the files of PEFT: an adapter alone, the wrapped model before merging, and the merged model."""
    model = settle(head(), IDS)
    a, b = torch.randn(2, 8), torch.randn(8, 2)
    (folder / "adapter").mkdir()
    names = ("base_model.model.q_proj.lora_A.weight", "base_model.model.q_proj.lora_B.weight")
    save_file(dict(zip(names, (a, b), strict=True)), folder / "adapter" / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "b",
    }
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    wrapped = {f"base_model.model.{name}": value for name, value in model.state_dict().items()}
    for part in ("weight", "bias"):
        wrapped[f"base_model.model.q_proj.base_layer.{part}"] = wrapped.pop(f"base_model.model.q_proj.{part}")
    wrapped["base_model.model.q_proj.lora_A.default.weight"] = a
    wrapped["base_model.model.q_proj.lora_B.default.weight"] = b
    torch.save(wrapped, folder / "wrapped.pt")
    with torch.no_grad():
        model.q_proj.weight += b @ a * 2
    torch.save(model.state_dict(), folder / "merged.pt")
    return ask(model, "ids", IDS)
