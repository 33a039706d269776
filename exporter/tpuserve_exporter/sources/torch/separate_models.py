"""Separates the models in a file of torch: by the prefixes of their names, and by the order of their parameters.

A training wrapper saves a student and a teacher, or a model and its average, in one state_dict. Some averages are lists
of tensors in the order of the parameters.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch

Tensors = Mapping[str, torch.Tensor]

# Counters of training batches. Predictions do not depend on them, and old files lack them.
COUNTERS = ("num_batches_tracked", "n_averaged")


def name_list(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a list of parameters by name, or an empty dictionary if it is none of the module's.

    `torch_ema` and the EMAModel of diffusers write such lists, the former without the parameters that are not trained.
    """
    every = dict(module.named_parameters())
    trained = {name: value for name, value in every.items() if value.requires_grad}
    shapes = [tensor.shape for tensor in tensors]
    fitting = (one for one in (every, trained) if one and [value.shape for value in one.values()] == shapes)
    return dict(zip(next(fitting, {}), tensors, strict=False))


def separate(
    wanted: Tensors, path: str, tensors: Tensors, names: Mapping[str, str], unused: Sequence[str]
) -> dict[str, Tensors]:
    """Return each whole model of a set by its path. A set with one model is returned as it is.

    `names` are the tensors' names after --rename. A model whose names all match a glob of `unused` is no candidate.
    """
    shapes = {name: value.shape for name, value in wanted.items() if not name.endswith(COUNTERS)}
    stored = {names[name]: tensor.shape for name, tensor in tensors.items()}
    whole = [prefix for prefix in ["", *dict.fromkeys(list_prefixes(stored))] if _is_whole(shapes, stored, prefix)]
    parts: dict[str, dict[str, torch.Tensor]] = {prefix: {} for prefix in whole}
    rest: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        holders = [prefix for prefix in whole if names[name].startswith(prefix)]
        if holders:
            parts[max(holders, key=len)][name] = tensor
        elif tensor.numel() > 1 or tensor.is_floating_point():
            rest[name] = tensor  # a flag or a counter next to whole models is the wrapper's
    kept = {
        prefix: part
        for prefix, part in parts.items()
        if not all(any(fnmatchcase(names[name], glob) for glob in unused) for name in part)
    }
    if len(whole) < 2 or not kept:
        return {path: tensors}
    return {".".join(filter(None, (path, prefix[:-1]))): {**part, **rest} for prefix, part in kept.items()}


def separate_average(
    module: torch.nn.Module, path: str, tensors: Tensors, names: Mapping[str, str]
) -> tuple[str, Tensors, Tensors]:
    """Separate an average whose names lack the dots, as latent diffusion saves it: `model_ema.fc1weight`.

    Return its path with its tensors by the module's names, and the other tensors. Without an average, the path is "".
    It covers the parameters that are trained. `names` are the tensors' names after --rename.
    """
    trained = {name: value.shape for name, value in module.named_parameters() if value.requires_grad}
    flat = {name.replace(".", ""): name for name in trained}
    if len(flat) < len(trained) or not flat:
        return "", {}, tensors
    stored = {names[name]: name for name in tensors}
    first = next(iter(flat))
    for start in [name.removesuffix(first) for name in stored if name.endswith(first)]:
        prefix, _, _ = start.rpartition(".")
        found = {name: tensors[stored[start + one]] for one, name in flat.items() if start + one in stored}
        if prefix and {name: value.shape for name, value in found.items()} == trained:
            rest = {name: value for name, value in tensors.items() if not names[name].startswith(f"{prefix}.")}
            return ".".join(filter(None, (path, prefix))), found, rest
    return "", {}, tensors


def _is_whole(shapes: Mapping[str, torch.Size], stored: Mapping[str, torch.Size], prefix: str) -> bool:
    return bool(shapes) and all(stored.get(prefix + name) == shape for name, shape in shapes.items())


def list_prefixes(names: Mapping[str, object]) -> Iterator[str]:
    """Yield the prefixes of one and two modules that a training may put before the model's names."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:depth]) + "." for depth in (1, 2) if depth < len(parts))
