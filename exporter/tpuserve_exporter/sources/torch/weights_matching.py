"""The match of stored tensors with a module's parameters and buffers by full name. Incomplete matches are errors."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.options.export_options import WEIGHTS, ModelOptions, rename
from tpuserve_exporter.sources.nearness import check_near, choose_compared, measure
from tpuserve_exporter.sources.part_roles import Role, role_of
from tpuserve_exporter.sources.torch.hugging_face_names import convert_names
from tpuserve_exporter.sources.torch.separate_models import (
    COUNTERS,
    list_prefixes,
    name_list,
    separate,
    separate_average,
)
from tpuserve_exporter.sources.torch.tensors import dtype_name
from tpuserve_exporter.sources.torch.weights_file import WeightsFile
from tpuserve_exporter.terms.adapters import is_adapter
from tpuserve_exporter.terms.provenance import TRAINED, Origin, OriginKind, Origins
from tpuserve_exporter.terms.restore_report import Entry, Fate, RestoreReport, allow
from tpuserve_exporter.terms.signature import Array

Tensors = Mapping[str, torch.Tensor]

# Preferred sets, in order, if several sets in one file fit equally well.
_PREFERRED = ("model", "state_dict", "model_state_dict", "module", "net", "")
_FOR_TRAINING = (
    "the weights are those for training, because the file was saved while its schedule-free optimizer was in training "
    "mode. Call the optimizer's eval() before torch.save"
)
# Ends of the names of scales next to weights of 8 bits.
_SCALE = re.compile(r"_scale(_inv)?$")
# Names of the modules that torch.compile, FSDP and activation checkpointing put around others.
_WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass(frozen=True, slots=True)
class Matching:
    """A matched set of the file. `pairs` has tensors by their names in the module, and `leftover` by their own names.

    `origins` are those of the pairs.
    """

    path: str
    pairs: Tensors
    leftover: Tensors
    role: Role = Role.MODEL
    origins: Origins = field(default_factory=dict)

    def fit(self, module: Tensors) -> tuple[int, int, int]:
        """Score the match: pairs with equal shapes, then pairs, then few leftover tensors. Higher is better."""
        alike = sum(module[name].shape == tensor.shape for name, tensor in self.pairs.items())
        return alike, len(self.pairs), -len(self.leftover)


def restore(module: torch.nn.Module, file: WeightsFile, options: ModelOptions) -> RestoreReport:
    """Assign the stored tensors to the module. Raises CheckpointMismatch with the report, before any assignment."""
    wanted = {name: value for name, value in module.state_dict().items() if torch.is_tensor(value)}
    if not options.renames:
        file = replace(file, sets={path: convert_names(module, tensors) for path, tensors in file.sets.items()})
    file = replace(file, sets=_list_sets(module, wanted, file, options))
    chosen, notes = _choose(module, wanted, file, options)
    if file.is_for_training and chosen.role is Role.MODEL:
        notes.append(_FOR_TRAINING)
    report = _report(wanted, chosen, file, options, notes)
    _check_tied(wanted, chosen, file.name)
    _check_scales(chosen, file.name)
    if report.problems:
        what = f"{file.name} does not fit the model that {options.builder or file.name} builds"
        unused = [one.name for one in report.of(Fate.UNUSED)]
        raise CheckpointMismatch(describe_adapter(file.name, unused) or report.refusal(what), restore=report)
    # Assignment avoids a copy of weights that are mapped from the file.
    values = {name: tensor.to(wanted[name].dtype) for name, tensor in chosen.pairs.items()}
    module.load_state_dict(values, strict=False, assign=True)
    return report


def describe_adapter(file: str, names: Iterable[str]) -> str:
    """Return the refusal of a file whose tensors `names` have no place in the model, or "" without an adapter."""
    found = next(filter(is_adapter, names), "")
    return found and (
        f"{file} has weights of an adapter ({found}), which the model itself lacks. Merge them into the model and "
        "export the result: peft_model.merge_and_unload().save_pretrained(DIR), or torch.save of its state_dict()"
    )


def _list_sets(
    module: torch.nn.Module, wanted: Tensors, file: WeightsFile, options: ModelOptions
) -> dict[str, Tensors]:
    """Return the sets of the file, each with one model, and its lists that are one by their shapes."""
    sets: dict[str, Tensors] = {path: named for path, one in file.lists.items() if (named := name_list(module, one))}
    for path, tensors in file.sets.items():
        names = dict(zip(tensors, _rename(tensors, file, options), strict=True))
        average, found, others = separate_average(module, path, tensors, names)
        sets |= {average: found} if average else {}
        sets |= separate(wanted, path, others, names, options.allow_unused)
    return sets


def _choose(
    module: torch.nn.Module, wanted: Tensors, file: WeightsFile, options: ModelOptions
) -> tuple[Matching, list[str]]:
    """Choose the set to serve by --weights, with notes for the user.

    Raises CheckpointMismatch if there is no such set, if several fit equally well, or if an average is not one of
    weights.
    """
    matched = {path: _match(module, wanted, path, tensors, file, options) for path, tensors in file.sets.items()}
    if options.weights not in WEIGHTS:
        return _take_named(wanted, matched, file, options.weights), []
    averaged = {path: one for path, one in matched.items() if one.role is Role.AVERAGE and one.pairs}
    raw = _list_trained(matched)
    empty = [path for path in averaged if file.updates.get(path) == 0]
    notes = [f"did not use {_quote(path)}, because it averages no weights yet (n_averaged is 0)" for path in empty]
    filled = {path: one for path, one in averaged.items() if path not in empty}
    if options.weights == "ema" and not filled:
        there = ", ".join(map(_quote, file.sets))
        why = f". The exporter {notes[0]}" if notes else ""
        raise CheckpointMismatch(
            f"--weights ema: {file.name} has no averaged weights. It has {there}. Use --weights raw{why}"
        )
    if options.weights == "raw":
        return _best(wanted, raw or averaged, file), []
    if not filled and not raw:
        raise CheckpointMismatch(
            f"{file.name} has no other weights. The exporter {notes[0]}. --weights raw serves them"
        )
    if not filled:
        best = _best(wanted, raw, file)
        return best, [*notes, *_describe_rivals(wanted, best, raw)]
    best = _best(wanted, filled, file)
    if not raw:
        return best, [f"used the averaged weights, '{best.path}', because the file has no others"] if best.path else []
    others = _best(wanted, raw, file)
    note = f"used the averaged weights, '{best.path}', instead of '{others.path}' (--weights raw uses those)"
    return _complete(best, others, options.weights == "auto"), [note]


def _take_named(wanted: Tensors, matched: Mapping[str, Matching], file: WeightsFile, name: str) -> Matching:
    """Return the set that --weights names, by its path or the end of it. Raises CheckpointMismatch if there is none."""
    ends = [path for path in matched if path == name or path.endswith(f".{name}")]
    if name not in ends and len(ends) != 1:
        there = ", ".join(map(_quote, ends or matched))
        raise CheckpointMismatch(f"--weights {name}: {file.name} has no set of this name. It has {there}")
    name = name if name in ends else ends[0]
    best = matched[name]
    raw = _list_trained({path: one for path, one in matched.items() if path != name})
    complete = best.role is Role.AVERAGE and raw
    return _complete(best, _best(wanted, raw, file), strictly=False) if complete else best


def _list_trained(matched: Mapping[str, Matching]) -> dict[str, Matching]:
    """Return the sets that are neither averages nor optimizer state. If there are none, return optimizer state, too."""
    others = {path: one for path, one in matched.items() if one.role is not Role.AVERAGE or not one.pairs}
    return {path: one for path, one in others.items() if one.role is not Role.OPTIMIZER} or others


def _complete(average: Matching, trained: Matching, strictly: bool) -> Matching:
    """Add the trained values that the average lacks. Averages cover parameters only, and not running means.

    Raises CheckpointMismatch if the average is far from the trained weights.
    """
    compared = {
        name: value.numel()
        for name, value in average.pairs.items()
        if value.is_floating_point() and name in trained.pairs and trained.pairs[name].shape == value.shape
    }
    pairs = ((_to_numpy(average.pairs[name]), _to_numpy(trained.pairs[name])) for name in choose_compared(compared))
    detail = check_near(measure(pairs), f"'{average.path}'", f"'{trained.path}'", strictly)
    origins = {name: replace(one, detail=detail) for name, one in average.origins.items()}
    return replace(average, pairs={**trained.pairs, **average.pairs}, origins={**trained.origins, **origins})


def _to_numpy(value: torch.Tensor) -> Array:
    return np.asarray(value.detach().float())


def _best(wanted: Tensors, candidates: Mapping[str, Matching], file: WeightsFile) -> Matching:
    best = max(candidates.values(), key=lambda one: one.fit(wanted))
    tied = {path: one for path, one in candidates.items() if one.fit(wanted) == best.fit(wanted)}
    preferred = next((tied[path] for path in _PREFERRED if path in tied), None)
    if len(tied) > 1 and preferred is None and best.pairs:
        raise CheckpointMismatch(
            f"{file.name} has several sets of weights that fit equally well: {', '.join(map(_quote, tied))}. Choose "
            f"one with --weights {next(filter(None, tied))}, or save the one to serve as 'model'"
        )
    return preferred or best


def _describe_rivals(wanted: Tensors, best: Matching, others: Mapping[str, Matching]) -> Iterator[str]:
    """Yield a note on other sets that fit as well. Their names do not show an average."""
    rivals = [path for path, one in others.items() if one is not best and one.fit(wanted) == best.fit(wanted)]
    if rivals and best.pairs:
        yield (
            f"used {_quote(best.path)} of the file, although {', '.join(map(_quote, rivals))} would also fit "
            "(--weights NAME uses another)"
        )


def _quote(path: str) -> str:
    return f"'{path}'" if path else "one set"


def _rename(tensors: Tensors, file: WeightsFile, options: ModelOptions) -> dict[str, torch.Tensor]:
    """Apply --rename in order, and drop the names of wrappers. Raises CheckpointMismatch for equal names."""
    names = {name: rename(_WRAPPERS.sub("", name), options.renames) for name in tensors}
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise CheckpointMismatch(
            f"--rename gives several tensors of {file.name} the same name: {', '.join(sorted(twice))}"
        )
    return {names[name]: tensor for name, tensor in tensors.items()}


def _match(
    module: torch.nn.Module,
    wanted: Tensors,
    path: str,
    tensors: Tensors,
    file: WeightsFile,
    options: ModelOptions,
) -> Matching:
    """Match the names unchanged or without a prefix from training (`module.`, `model.`), and return the best match."""
    stored = _rename(tensors, file, options)
    role = Role.AVERAGE if path in file.updates else role_of(path.split("."))
    kind = OriginKind.AVERAGE if role is Role.AVERAGE else OriginKind.PARAMETERS
    prefixes = ["", *dict.fromkeys(list_prefixes(stored))]
    matches = (_match_below(module, wanted, path, stored, prefix) for prefix in prefixes)
    best = max(matches, key=lambda one: one.fit(wanted))
    return replace(best, role=role, origins=dict.fromkeys(best.pairs, Origin(kind, path)))


def _match_below(module: torch.nn.Module, wanted: Tensors, path: str, stored: Tensors, prefix: str) -> Matching:
    below = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    inner = below if wanted.keys() <= below.keys() else _convert_old_names(module, below)
    pairs = {name: inner[name] for name in wanted if name in inner}
    unused = {prefix + name: tensor for name, tensor in inner.items() if name not in pairs}
    unused |= {name: tensor for name, tensor in stored.items() if not name.startswith(prefix)}
    leftover = {name: tensor for name, tensor in unused.items() if not name.endswith(COUNTERS)}
    return Matching(path, pairs | _tied(wanted, pairs), leftover)


def _convert_old_names(module: torch.nn.Module, tensors: Tensors) -> Tensors:
    """Apply the hooks with which modules read files of older releases, such as `weight_g` of weight norm."""
    converted = dict(tensors)
    try:
        for path, part in module.named_modules():
            for hook in part._load_state_dict_pre_hooks.values():
                hook(converted, f"{path}." if path else "", {}, True, [], [], [])
    except Exception:  # a hook of the user's module: the match of names explains what is missing
        return tensors
    return converted


def _tied(wanted: Tensors, pairs: Tensors) -> dict[str, torch.Tensor]:
    """Return tensors for parameters with a second name. safetensors stores only one of the names."""
    by_place = {_place(wanted[name]): tensor for name, tensor in pairs.items() if wanted[name].numel()}
    return {
        name: by_place[_place(tensor)]
        for name, tensor in wanted.items()
        if name not in pairs and tensor.numel() and _place(tensor) in by_place
    }


def _check_tied(wanted: Tensors, chosen: Matching, file: str) -> None:
    """Raise CheckpointMismatch if the builder shares one parameter between names with different stored values."""
    first: dict[tuple[int, torch.Size, torch.dtype], str] = {}
    for name in filter(lambda one: wanted[one].numel(), chosen.pairs):
        other = first.setdefault(_place(wanted[name]), name)
        if name != other and not torch.equal(chosen.pairs[name], chosen.pairs[other]):
            raise CheckpointMismatch(
                f"the builder shares one parameter between {other} and {name}, but {file} has different values for "
                "them. Build the model with two parameters (such as tie_word_embeddings=False)"
            )


def _check_scales(chosen: Matching, file: str) -> None:
    """Raise CheckpointMismatch if the file has scales of quantized weights, which a cast of these would ignore."""
    quantized = {name for name, tensor in chosen.pairs.items() if tensor.element_size() == 1 and tensor.ndim > 1}
    for scale in chosen.leftover if quantized else ():
        base = _SCALE.sub("", scale)
        if base != scale and any(f".{base}".endswith(f".{name}") for name in quantized):
            raise CheckpointMismatch(
                f"{file} has quantized weights with a scale ({scale}), which the model itself lacks. Multiply each "
                "weight by its scale, and export the result: model.dequantize().save_pretrained(DIR) in transformers, "
                "or torch.save of the state_dict with the products"
            )


def _place(tensor: torch.Tensor) -> tuple[int, torch.Size, torch.dtype]:
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _report(
    wanted: Tensors, chosen: Matching, file: WeightsFile, options: ModelOptions, notes: Sequence[str]
) -> RestoreReport:
    entries = [
        _compare(name, tensor, chosen.pairs.get(name), chosen.origins.get(name, TRAINED))
        for name, tensor in wanted.items()
        if name in chosen.pairs or not name.endswith(COUNTERS)
    ]
    others = {path: found for path, found in file.sets.items() if path != chosen.path}
    # Adapters next to the weights belong to the model, unlike another model's.
    adapters = {f"{path}.{name}": one for path, found in others.items() for name, one in found.items()}
    unused = {**chosen.leftover, **{name: one for name, one in adapters.items() if is_adapter(name)}}
    entries += [Entry(name, Fate.UNUSED, checkpoint=_describe(tensor)) for name, tensor in unused.items()]
    return RestoreReport(
        allow(entries, options.allow_missing, options.allow_unused),
        optimizer_state=file.optimizer_state,
        other_models={path or file.name: tuple(found) for path, found in others.items()},
        bookkeeping=file.bookkeeping,
        notes=tuple(notes),
    )


def _compare(name: str, wanted: torch.Tensor, stored: torch.Tensor | None, origin: Origin) -> Entry:
    if stored is None:
        return Entry(name, Fate.MISSING, model=_describe(wanted))
    return Entry(name, _fate(wanted, stored), _describe(wanted), _describe(stored), origin=origin)


def _fate(wanted: torch.Tensor, stored: torch.Tensor) -> Fate:
    if wanted.shape != stored.shape:
        return Fate.SHAPE
    if wanted.dtype == stored.dtype:
        return Fate.MATCHED
    return Fate.CAST if wanted.is_floating_point() and stored.is_floating_point() else Fate.DTYPE


def _describe(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
