"""Roles of a checkpoint's parts by their names. The export and `inspect` use the same rules, for every framework."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """Role of a part. The export uses optimizer state only if the user names the part."""

    MODEL = "model"
    AVERAGE = "average"
    OPTIMIZER = "optimizer"


# Common keys for these parts. Averages of gradients belong to the optimizer.
_OPTIMIZER = re.compile(r"opt|optim|tx|optimizers?(_states?)?|opt_?states?|param_states", re.IGNORECASE)
_GRADIENTS = re.compile(
    r"(.*_)?(grads?|gradients?|updates?|moments?|momentum|velocity|exp_avg|exp_avg_sq)(_.*)?", re.IGNORECASE
)
_AVERAGE = re.compile(r"(.*_)?(ema|swa|avg|averaged?|averages|polyak|shadow)(_.*)?", re.IGNORECASE)


def is_optimizer_key(key: str) -> bool:
    """Return whether one key names the state of an optimizer."""
    return _OPTIMIZER.fullmatch(key) is not None


def is_torch_optimizer(node: Mapping[Any, Any]) -> bool:
    """Return whether a dictionary of a torch file is an optimizer's state_dict, or one with joined names as of FSDP."""
    if {"state", "param_groups"} <= node.keys():
        return True
    return {str(name).partition(".")[0] for name in node} == {"state", "param_groups"}


def role_of(keys: Iterable[str]) -> Role:
    """Return the role of the part that the keys lead to, from the root of a checkpoint."""
    keys = list(keys)
    if any(_OPTIMIZER.fullmatch(key) or _GRADIENTS.fullmatch(key) for key in keys):
        return Role.OPTIMIZER
    return Role.AVERAGE if any(map(_AVERAGE.fullmatch, keys)) else Role.MODEL
