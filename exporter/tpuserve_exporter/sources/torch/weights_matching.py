"""The match of stored tensors with a module's parameters and buffers by full name. Incomplete matches are errors."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.options.export_options import ModelOptions, rename
from tpuserve_exporter.sources.torch.tensors import dtype_name
from tpuserve_exporter.sources.torch.weights_file import WeightsFile
from tpuserve_exporter.terms.provenance import TRAINED, Origin, OriginKind, Origins
from tpuserve_exporter.terms.restore_report import Entry, Fate, RestoreReport, allow

Tensors = Mapping[str, torch.Tensor]

# Preferred sets, in order, if several sets in one file fit equally well.
_PREFERRED = ("model", "state_dict", "model_state_dict", "module", "net", "")
_AVERAGED = re.compile(r"(^|[._])(ema|swa|averaged?|shadow)([._]|$)", re.IGNORECASE)
# Counters of training batches. Predictions do not depend on them, and old files lack them.
_COUNTERS = ("num_batches_tracked", "n_averaged")
# The prefix that torch.compile adds to names.
_COMPILED = "_orig_mod."


@dataclass(frozen=True, slots=True)
class Matching:
    """A matched set of the file. `pairs` has tensors by their names in the module, and `leftover` by their own names.

    `origins` are those of the pairs.
    """

    path: str
    pairs: Tensors
    leftover: Tensors
    origins: Origins = field(default_factory=dict)

    def fit(self, module: Tensors) -> tuple[int, int, int]:
        """Score the match: pairs with equal shapes, then pairs, then few leftover tensors. Higher is better."""
        alike = sum(module[name].shape == tensor.shape for name, tensor in self.pairs.items())
        return alike, len(self.pairs), -len(self.leftover)


def restore(module: torch.nn.Module, file: WeightsFile, options: ModelOptions) -> RestoreReport:
    """Assign the stored tensors to the module. Raises CheckpointMismatch with the report, before any assignment."""
    wanted = {name: value for name, value in module.state_dict().items() if torch.is_tensor(value)}
    chosen, notes = _choose(wanted, file, options)
    report = _report(wanted, chosen, file, options, notes)
    if report.problems:
        raise CheckpointMismatch(
            report.refusal(f"{file.name} does not fit the model that {options.builder or file.name} builds"),
            restore=report,
        )
    # Assignment avoids a copy of weights that are mapped from the file.
    values = {name: tensor.to(wanted[name].dtype) for name, tensor in chosen.pairs.items()}
    module.load_state_dict(values, strict=False, assign=True)
    return report


def _choose(wanted: Tensors, file: WeightsFile, options: ModelOptions) -> tuple[Matching, list[str]]:
    """Choose the set to serve by --weights, with notes for the user.

    Raises CheckpointMismatch if there is no such set, or if several fit equally well.
    """
    matched = {path: _match(wanted, path, _rename(tensors, file, options)) for path, tensors in file.sets.items()}
    averaged = {path: one for path, one in matched.items() if _AVERAGED.search(path) and one.pairs}
    raw = {path: one for path, one in matched.items() if path not in averaged}
    if options.weights == "ema" and not averaged:
        there = ", ".join(map(_quote, file.sets))
        raise CheckpointMismatch(
            f"--weights ema: {file.name} has no averaged weights. It has {there}. Use --weights raw"
        )
    if not averaged or (options.weights == "raw" and raw):
        return _best(wanted, raw or averaged, file), []
    best = _best(wanted, averaged, file)
    best = replace(best, origins=dict.fromkeys(best.pairs, Origin(OriginKind.AVERAGE, best.path)))
    if not raw:
        return best, [f"used the averaged weights, '{best.path}', because the file has no others"]
    others = _best(wanted, raw, file)
    # Averages cover parameters only. Buffers such as running means come from the raw weights.
    pairs = {name: tensor for name, tensor in others.pairs.items() if name not in best.pairs}
    note = f"used the averaged weights, '{best.path}', instead of '{others.path}' (--weights raw uses those)"
    return replace(best, pairs={**best.pairs, **pairs}, origins={**others.origins, **best.origins}), [note]


def _best(wanted: Tensors, candidates: Mapping[str, Matching], file: WeightsFile) -> Matching:
    best = max(candidates.values(), key=lambda one: one.fit(wanted))
    tied = {path: one for path, one in candidates.items() if one.fit(wanted) == best.fit(wanted)}
    preferred = next((tied[path] for path in _PREFERRED if path in tied), None)
    if len(tied) > 1 and preferred is None and best.pairs:
        raise CheckpointMismatch(
            f"{file.name} has several sets of weights that fit equally well: {', '.join(map(_quote, tied))}. Save "
            "the one to serve as 'model'"
        )
    return preferred or best


def _quote(path: str) -> str:
    return f"'{path}'" if path else "one set"


def _rename(tensors: Tensors, file: WeightsFile, options: ModelOptions) -> dict[str, torch.Tensor]:
    """Apply --rename in order, and drop the prefix of torch.compile. Raises CheckpointMismatch for equal names."""
    names = {name: rename(name.replace(_COMPILED, ""), options.renames) for name in tensors}
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise CheckpointMismatch(
            f"--rename gives several tensors of {file.name} the same name: {', '.join(sorted(twice))}"
        )
    return {names[name]: tensor for name, tensor in tensors.items()}


def _match(wanted: Tensors, path: str, stored: Tensors) -> Matching:
    """Match the names unchanged or without a prefix from training (`module.`, `model.`), and return the best match."""
    prefixes = ["", *dict.fromkeys(_prefixes(stored))]
    return max((_match_below(wanted, path, stored, prefix) for prefix in prefixes), key=lambda one: one.fit(wanted))


def _prefixes(stored: Tensors) -> Iterator[str]:
    for name in stored:
        parts = name.split(".")
        yield from (".".join(parts[:depth]) + "." for depth in (1, 2) if depth < len(parts))


def _match_below(wanted: Tensors, path: str, stored: Tensors, prefix: str) -> Matching:
    inner = {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}
    pairs = {name: inner[name] for name in wanted if name in inner}
    used = {prefix + name for name in pairs}
    leftover = {name: tensor for name, tensor in stored.items() if name not in used and not name.endswith(_COUNTERS)}
    pairs |= _tied(wanted, pairs)
    return Matching(path, pairs, leftover, dict.fromkeys(pairs, Origin(part=path)))


def _tied(wanted: Tensors, pairs: Tensors) -> dict[str, torch.Tensor]:
    """Return tensors for parameters with a second name. safetensors stores only one of the names."""
    by_place = {_place(wanted[name]): tensor for name, tensor in pairs.items() if wanted[name].numel()}
    return {
        name: by_place[_place(tensor)]
        for name, tensor in wanted.items()
        if name not in pairs and tensor.numel() and _place(tensor) in by_place
    }


def _place(tensor: torch.Tensor) -> tuple[int, torch.Size, torch.dtype]:
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _report(
    wanted: Tensors, chosen: Matching, file: WeightsFile, options: ModelOptions, notes: Sequence[str]
) -> RestoreReport:
    entries = [
        _compare(name, tensor, chosen.pairs.get(name), chosen.origins.get(name, TRAINED))
        for name, tensor in wanted.items()
        if name in chosen.pairs or not name.endswith(_COUNTERS)
    ]
    entries += [Entry(name, Fate.UNUSED, checkpoint=_describe(tensor)) for name, tensor in chosen.leftover.items()]
    return RestoreReport(
        allow(entries, options.allow_missing, options.allow_unused),
        optimizer_state=file.optimizer_state,
        other_models={path or file.name: tuple(found) for path, found in file.sets.items() if path != chosen.path},
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
