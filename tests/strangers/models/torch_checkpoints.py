"""PyTorch training checkpoints: torch.distributed.checkpoint, FSDP, Lightning, and models that read masks and ids."""

import argparse
import os

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict

IDS = np.array([[5, 3, 8, 29, 0, 0], [7, 1, 2, 9, 11, 4], [28, 0, 0, 0, 0, 0], [3, 3, 3, 17, 6, 0]])
CATEGORIES = np.array([[0, 8, 4], [11, 3, 0], [5, 0, 2]])


class MaskedEncoder(nn.Module):
    """A text classifier of ids, where 0 is padding. In eval mode, PyTorch makes nested tensors from the mask."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        padding = ids == 0
        hidden = self.layers(self.words(ids), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).float()
        return self.head((hidden * kept).sum(1) / kept.sum(1).clamp(min=1))


class Recommender(nn.Module):
    """A model with a table for each column of one input."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 4) for rows in (12, 9, 5))
        self.head = nn.Linear(12, 2)

    def forward(self, categories):
        return self.head(torch.cat([table(categories[:, at]) for at, table in enumerate(self.tables)], 1))


def masked_encoder():
    return MaskedEncoder()


def recommender():
    return Recommender()


def train(model, inputs):
    """Take two steps, so that the weights differ from those of a new model and the optimizer has state."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.from_numpy(inputs)).square().sum().backward()
        optimizer.step()
    return optimizer


def answers(model, name, inputs):
    with torch.inference_mode():
        expected = model.eval()(torch.from_numpy(inputs)).numpy()
    return {"serving_default": [({name: inputs}, {"outputs": expected})]}


def save_masked_encoder(folder):
    model = masked_encoder()
    train(model, IDS)
    torch.save(model.state_dict(), folder / "model.pt")
    return answers(model, "ids", IDS)


def save_recommender(folder):
    model = recommender()
    train(model, CATEGORIES)
    torch.save(model.state_dict(), folder / "model.pt")
    return answers(model, "categories", CATEGORIES)


def save_wrapped_average(folder):
    """Save a wrapper's state_dict with the model and its average, and the list of torch_ema."""
    model, average = recommender(), recommender()
    train(model, CATEGORIES)
    generator = torch.Generator().manual_seed(7)
    weights = {
        name: one + 0.05 * torch.randn(one.shape, generator=generator) for name, one in model.state_dict().items()
    }
    average.load_state_dict(weights)
    both = {f"model.{name}": one for name, one in model.state_dict().items()}
    torch.save({"state_dict": both | {f"ema_model.{name}": one for name, one in weights.items()}}, folder / "both.ckpt")
    shadow = {"decay": 0.99, "num_updates": 2, "shadow_params": list(weights.values())}
    torch.save({"model": model.state_dict(), "ema": shadow}, folder / "list.pt")
    torch.save({"model": model.state_dict(), "lora": {"head.lora_A": torch.ones(2, 12)}}, folder / "adapted.pt")
    return answers(average, "categories", CATEGORIES)


def save_titan(folder):
    """Save as TorchTitan does: the weights at the top, the optimizer's state under joined names, the step."""
    model = masked_encoder()
    optimizer = train(model, IDS)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    saved = {
        **model.state_dict(),
        "optimizer": state,
        "train_state": {"step": torch.tensor(2)},
        "lr_scheduler": {"last_epoch": 2},
    }
    dcp.save(saved, checkpoint_id=folder / "step-2", no_dist=True)
    return answers(model, "ids", IDS)


def save_sharded(folder):
    """Train with FSDP in two processes, and save both layouts of torch.distributed.checkpoint."""
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=2)
    model = masked_encoder()
    model.load_state_dict(torch.load(folder / "whole.pt"))
    return answers(model, "ids", IDS)


def work(rank, folder):
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", f"file://{folder}/.rendezvous", rank=rank, world_size=2)
    model = masked_encoder()
    for layer in model.layers.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(torch.from_numpy(IDS)).square().sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"app": {"model": weights, "optim": state}}, checkpoint_id=f"{folder}/parts")
    dcp.save(weights, storage_writer=HuggingFaceStorageWriter(f"{folder}/shards", save_distributed=True))
    whole = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))[0]
    if rank == 0:
        torch.save(whole, f"{folder}/whole.pt")
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo may abort a process that ends normally


def save_lightning(folder):
    """Save as Lightning's Trainer does, and with hyperparameters as older releases do; names as wrapped by FSDP."""
    model = recommender()
    optimizer = train(model, CATEGORIES)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    saved = {
        "epoch": 1, "global_step": 2, "pytorch-lightning_version": "2.5.0", "state_dict": weights, "loops": {},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.3)}},
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [],
    }  # fmt: skip
    torch.save(saved, folder / "last.ckpt")
    torch.save({**saved, "hyper_parameters": argparse.Namespace(lr=0.01)}, folder / "old.ckpt")
    wrapped = {f"_orig_mod._fsdp_wrapped_module.{name}": value for name, value in model.state_dict().items()}
    torch.save({"model": wrapped}, folder / "wrapped.bin")
    return answers(model, "categories", CATEGORIES)


def save_fused_program(folder):
    """Save a program that torch.export traced through PyTorch's fused attention, and a checkpoint without a file."""
    model = masked_encoder()
    train(model, IDS)
    layers = model.layers.eval()
    with torch.no_grad():
        program = torch.export.export(layers, (torch.ones(2, 5, 16),), strict=True)
    torch.export.save(program, folder / "model.pt2")
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "parts", no_dist=True)
    (folder / "parts/__0_0.distcp").rename(folder / "parts/__9_0.distcp")
    return {}
