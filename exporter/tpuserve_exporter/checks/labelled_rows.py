"""The rows of --labelled for a signature: which of the file's names are its inputs and which are labels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tpuserve_exporter.checks.metrics import Metric, make_metric
from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.expectation import Expectation, LabelledOptions
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.terms.domain import Sampled
from tpuserve_exporter.terms.sample_files import SampleFile
from tpuserve_exporter.terms.sample_rows import SampleRows, scan_samples
from tpuserve_exporter.terms.samples import check_lengths, count_rows, read_samples, take_rows
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec
from tpuserve_exporter.version.manifest import hash_file

# Names of labels in files, the likeliest first.
_LIKELY: Final = ("label", "labels", "y")


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """The rows of --labelled, and the expectations about them. `names` are the class names of --labels."""

    options: LabelledOptions
    rows: SampleRows
    sha256: str
    names: Sequence[str]
    sequences: SequenceOptions

    @classmethod
    def open(cls, options: LabelledOptions, names: Sequence[str], sequences: SequenceOptions) -> "LabelledRows":
        """Read the file's names, so that a wrong one ends the export before it takes minutes.

        Raises SamplesUnfit, and BuilderFailed for a function that cannot be imported.
        """
        opened = cls(options, scan_samples(options.file), hash_file(options.file), names, sequences)
        for expectation in options.expectations:
            opened.make_metric(expectation)
        known = [("--label-key", options.label_key), *(("--input-key", key) for key in options.input_keys.values())]
        known += [(f"--expect {one.metric}: no labels", one.labels) for one in options.expectations]
        for option, key in known:
            if key and key not in opened.rows.keys:
                raise SamplesUnfit(f"{option} {key!r}: {options.file.name} has {', '.join(opened.rows.keys)}")
        return opened

    @property
    def name(self) -> str:
        return self.options.file.name

    def make_metric(self, expectation: Expectation) -> Metric:
        return make_metric(expectation, self.names, self.options.ignored)


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of a signature for `rows` rows of `file`. A signature of fixed size gets its last row repeatedly."""

    inputs: Tensors
    rows: int
    file: SampleFile

    def labels(self, key: str, shapes: Iterable[tuple[int | None, ...]]) -> Array:
        """Return the labels. In files without shapes, they get the first of `shapes` that fits. Raises SamplesUnfit."""
        first: SamplesUnfit | None = None
        for shape in dict.fromkeys(shapes):
            try:
                return self.file.find(key, Signature("", {key: TensorSpec("", shape)}, {}))
            except SamplesUnfit as error:
                first = first or error
        assert first is not None, "every metric has shapes of labels"
        raise first


class SignatureRows:
    """The rows of the file as inputs of one signature. `size` is the number of rows that it takes at once."""

    def __init__(self, labelled: LabelledRows, signature: Signature, batch_sizes: Sequence[int]) -> None:
        """Find the names of the inputs. Raises SamplesUnfit for a signature without rows."""
        self._labelled = labelled
        self._signature = signature
        fixed = _fixed_rows(signature)
        self.size = fixed or max(batch_sizes)
        self._any_rows = _free_rows(signature) if fixed else signature
        self._apart = self._find_labels()
        self._names = self._find_inputs()

    def _find_labels(self) -> frozenset[str]:
        """Return the names that are labels of any expectation, before the inputs are known."""
        labelled = self._labelled
        given = {one.labels or labelled.options.label_key for one in labelled.options.expectations}
        likely = [key for key in _LIKELY if key in labelled.rows.keys and key not in self._signature.inputs]
        return frozenset({*given, *(likely[:1] if "" in given else [])} - {""})

    def _find_inputs(self) -> dict[str, str]:
        """Return the names of inputs in the file, by input. The only array but labels is the only input."""
        keys, given, found = self._labelled.rows.keys, self._labelled.options.input_keys, dict[str, str]()
        for name in self._signature.inputs:
            likely = (given.get(name, ""), f"{self._signature.name}/{name}", name)
            if key := next((key for key in likely if key in keys), ""):
                found[name] = key
        rest = [key for key in keys if key not in self._apart]
        if not found and len(rest) == len(self._signature.inputs) == 1:
            return {next(iter(self._signature.inputs)): rest[0]}
        return found

    def labels_of(self, expectation: Expectation) -> str:
        """Return the name of the labels: the given one, a likely one, or the only one that is no input.

        Raises SamplesUnfit if there is no such name.
        """
        labelled = self._labelled
        if given := expectation.labels or labelled.options.label_key:
            return given
        taken = {*self._names.values(), *self._signature.inputs}
        others = [key for key in labelled.rows.keys if key not in taken]
        likely = [key for key in _LIKELY if key in others] or (others if len(others) == 1 else [])
        if not likely:
            names = f"it has {', '.join(labelled.rows.keys)}, but no name that is no input"
            found = f"{', '.join(others)} may be labels" if others else names
            raise SamplesUnfit(f"{labelled.name}: {found}. Name the labels with --label-key")
        return likely[0]

    def batches(self, labels: Iterable[str], model: Sampled) -> Iterator[Batch]:
        """Read the file. `labels` are names that the caller reads. Raises SamplesUnfit for rows that do not fit."""
        labelled = self._labelled
        given, ignored = labelled.sequences.pad_values, labelled.options.ignored
        pads = {**given, **{key: given[name] for name, key in self._names.items() if name in given}}
        apart = self._apart | set(labels)
        is_complete = self._names.keys() == self._signature.inputs.keys()
        keys = self._names.values() if is_complete else [key for key in labelled.rows.keys if key not in apart]
        for file in labelled.rows.batches([*keys, *labels], self.size, {**pads, **dict.fromkeys(labels, ignored)}):
            inputs = read_samples(_Renamed(file.without(apart), self._names), self._any_rows, 1, model)
            check_lengths(self._signature, inputs, labelled.sequences, "--labelled")
            rows = count_rows(inputs)
            if rows < self.size and self._any_rows is not self._signature:
                inputs = take_rows(inputs, np.minimum(np.arange(self.size), rows - 1))
            yield Batch(inputs, rows, file)

    def count(self, labels: Iterable[str]) -> int:
        """Return the number of rows. Raises SamplesUnfit if inputs and labels differ in it, or have none."""
        return self._labelled.rows.count([*self._names.values(), *labels])


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Rows under the names of a signature's inputs, for `read_samples`."""

    file: SampleFile
    names: Mapping[str, str]

    @property
    def keys(self) -> Sequence[str]:
        return self.file.keys

    def without(self, keys: Iterable[str]) -> "_Renamed":
        return replace(self, file=self.file.without(keys))

    def find(self, name: str, signature: Signature) -> Array:
        inputs = {self.names.get(one, one): spec for one, spec in signature.inputs.items()}
        return self.file.find(self.names.get(name, name), replace(signature, inputs=inputs))

    def as_examples(self, signature: Signature) -> Array | None:
        return self.file.as_examples(signature)


def _fixed_rows(signature: Signature) -> int | None:
    """Return the rows of a signature of fixed size, or None. Raises SamplesUnfit if it is ragged or has no rows."""
    sizes = {(spec.shape or (0,))[0] if spec.shape is not None else None for spec in signature.inputs.values()}
    [size, *others] = sizes or {0}
    if others or size == 0 or signature.is_ragged:
        raise SamplesUnfit(f"{signature.name} has no rows to evaluate: its inputs have no common first dimension")
    return size


def _free_rows(signature: Signature) -> Signature:
    """Return the signature with any number of rows, so that fewer than the fixed number fit."""
    inputs, outputs = (
        {name: replace(one, shape=(None, *(one.shape or (None,))[1:])) for name, one in specs.items()}
        for specs in (signature.inputs, signature.outputs)
    )
    return replace(signature, inputs=inputs, outputs=outputs)
