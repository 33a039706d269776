"""One --expect: a metric, its bound, and the output and labels that it compares."""

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tpuserve_exporter.errors import OptionConflict

Operator: TypeAlias = Literal[">=", "<=", ">", "<"]
METRICS: Final = ("accuracy", "top-K", "auc", "mae", "rmse", "perplexity")
# Label of positions that metrics of classes do not count, as in PyTorch's cross_entropy and Hugging Face's collators.
IGNORED: Final = -100

_OPERATORS: Final[Mapping[Operator, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TEXT: Final = re.compile(
    r"\s*(?P<metric>[^()<>=]+?)\s*(\((?P<output>[^(),]*)(,(?P<labels>[^(),]*))?\))?\s*(?P<operator>[<>]=?)\s*(?P<bound>\S+)\s*"
)
_TOP: Final = re.compile(r"top-([1-9]\d*)")
_FORM: Final = 'Use METRIC[(OUTPUT[,LABELS])]>=BOUND, such as "accuracy>=0.97", "mae(price)<=3" or "metrics:f1>=0.8"'


@dataclass(frozen=True, slots=True)
class Expectation:
    """A bound of a metric, which `metric` names in lower case, or as `pkg.module:function`.

    `output` is OUTPUT or SIGNATURE/OUTPUT, and `labels` is their name in the file. Both are empty to choose the likely
    ones.
    """

    metric: str
    operator: Operator
    bound: float
    output: str = ""
    labels: str = ""

    @classmethod
    def parse(cls, text: str) -> "Expectation":
        """Read `accuracy>=0.97` or `mae(price,price_label)<=3`. Raises OptionConflict."""
        match = _TEXT.fullmatch(text)
        try:
            bound = math.nan if match is None else float(match["bound"])
        except ValueError:
            bound = math.nan
        if match is None or not math.isfinite(bound):
            raise OptionConflict(f"--expect {text!r} has no metric, comparison (>=, <=, >, <) and number. {_FORM}")
        output, labels = ((match[name] or "").strip() for name in ("output", "labels"))
        found = next(one for one in _OPERATORS if one == match["operator"])
        expectation = cls(_read_metric(match["metric"]), found, bound, output, labels)
        if expectation.is_share and not 0 <= bound <= 1:
            hint = f". Use {bound / 100:g}" if 1 < bound <= 100 else ""
            raise OptionConflict(f"--expect {text!r}: {expectation.metric} is a number from 0 to 1{hint}")
        return expectation

    @property
    def top(self) -> int | None:
        """K of `top-K`, or None for another metric."""
        match = _TOP.fullmatch(self.metric)
        return int(match[1]) if match else None

    @property
    def is_share(self) -> bool:
        """Whether the metric is a number from 0 to 1."""
        return self.metric in ("accuracy", "auc") or self.top is not None

    @property
    def is_function(self) -> bool:
        return ":" in self.metric

    def is_met(self, value: float) -> bool:
        """Return whether the value is within the bound. NaN and infinity never are."""
        return math.isfinite(value) and _OPERATORS[self.operator](value, self.bound)

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.bound:g}"


def _read_metric(text: str) -> str:
    if ":" in text:
        return text
    name = text.lower()
    if name in METRICS[:1] + METRICS[2:] or _TOP.fullmatch(name):
        return name
    near = [one for one in METRICS if one.startswith(name)] or difflib.get_close_matches(name, METRICS, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise OptionConflict(
        f"--expect has no metric {text!r}. {hint}Metrics: {', '.join(METRICS)}, or pkg.module:function of labels and "
        "output"
    )


@dataclass(frozen=True, slots=True)
class LabelledOptions:
    """A file of inputs and labels, and what the version must reach on it.

    `label_key` names the labels in the file, or is empty. `input_keys` has the names of inputs in the file that differ
    from those in the signature. Metrics of classes do not count positions with the label `ignored`.
    """

    file: Path
    expectations: tuple[Expectation, ...]
    label_key: str = ""
    input_keys: Mapping[str, str] = field(default_factory=dict)
    ignored: int = IGNORED

    @classmethod
    def read(
        cls,
        file: Path | None,
        expectations: tuple[str, ...],
        label_key: str | None,
        input_keys: tuple[str, ...],
        ignored: int | None,
    ) -> "LabelledOptions | None":
        """Return the options of a command line, or None without --labelled. Raises OptionConflict."""
        if file is None:
            given = {"--expect": expectations, "--label-key": label_key, "--input-key": input_keys}
            for option, value in (*given.items(), ("--ignore-label", ignored is not None)):
                if value:
                    raise OptionConflict(f"{option} needs --labelled FILE, a file with inputs and their labels")
            return None
        if not expectations:
            raise OptionConflict(f'--labelled {file.name} needs --expect, such as --expect "accuracy>=0.97"')
        parsed = tuple(Expectation.parse(text) for text in expectations)
        keys = dict(map(_read_key, input_keys))
        return cls(file, parsed, label_key or "", keys, IGNORED if ignored is None else ignored)


def _read_key(text: str) -> tuple[str, str]:
    name, equals, key = text.partition("=")
    if not name or not equals or not key:
        raise OptionConflict(f"--input-key {text!r} is not of the form INPUT=KEY, such as image_bytes=image/encoded")
    return name, key
