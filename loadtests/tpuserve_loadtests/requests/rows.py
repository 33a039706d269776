"""Rows of data for own scenarios, from CSV, TFRecord or recorded requests, in another order for each user."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, Self, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from tpuserve_client import tensor
from tpuserve_client.dtypes import STRING
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages import official
from tpuserve_formats.tf_record import read_records
from tpuserve_loadtests.requests.arrays import BadInput
from tpuserve_loadtests.requests.recording import BadRecording, Recording

# Values by column, feature or input: numbers and texts of CSV, arrays of the other files.
Row: TypeAlias = Mapping[str, Any]
_INTEGER: Final = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_NUMBER: Final = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DTYPES: Final = {"bytes_list": STRING, "float_list": np.dtype(np.float32), "int64_list": np.dtype(np.int64)}


class Rows(Sequence[Row]):
    """Rows of a file, which the users of a process share. Each row is a mapping from name to value.

    Read a file once, in the class body of the users. `shuffled` gives each user an endless iterator::

        class Visitor(TpuserveUser):
            rows = Rows.from_csv("visitors.csv")

            def on_start(self):
                self.own = self.rows.shuffled(seed=self.number)

            @task
            def score(self):
                row = next(self.own)
                self.client.predict("scores", {"age": [row["age"]]})
    """

    def __init__(self, title: str, rows: Sequence[Row]) -> None:
        """Keep rows; `title` names them in messages. Raises BadInput without rows."""
        if not rows:
            raise BadInput(f"{title} contains no rows.")
        self._title = title
        self._rows = tuple(rows)

    @classmethod
    def from_csv(cls, path: str | Path) -> Self:
        """Read a CSV file whose first line has the names of the columns.

        A column of integers becomes `int`, a column of other numbers `float`, and every other column `str`, such as a
        column with a number like 007. Raises BadInput.
        """
        try:
            with Path(path).open(newline="", encoding="utf-8-sig") as file:
                names, *lines = [line for line in csv.reader(file) if line] or [[]]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise BadInput(f"Cannot read {path}: {_reason(error)}.") from None
        if len(set(names)) < len(names):
            raise BadInput(f"{path}: The first line must have a different name for each column, not {names}.")
        for number, line in enumerate(lines, 2):
            if len(line) != len(names):
                raise BadInput(f"{path}: Row {number} has {len(line)} values. The first line has {len(names)} names.")
        columns = [_column([line[at] for line in lines]) for at in range(len(names))]
        return cls(str(path), [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)])

    @classmethod
    def from_examples(cls, path: str | Path) -> Self:
        """Read a TFRecord of tf.train.Example. A row has an array of one dimension for each feature.

        The dtypes are int64, float32, and object for bytes. Raises BadInput.
        """
        try:
            with Path(path).open("rb") as file:
                return cls(str(path), [_features(record) for record in read_records(file, refuse_rest=True)])
        except (OSError, FormatError, DecodeError) as error:
            raise BadInput(f"Cannot read {path}: {_reason(error)}.") from None

    @classmethod
    def from_requests(cls, path: str | Path, model: str | None = None) -> Self:
        """Read the Predict requests of a request log or a warm-up file. A row has the inputs of one request.

        `model` selects the requests of one model. Raises BadInput.
        """
        try:
            recording = Recording.read([Path(path)])
            logged = (recording if model is None else recording.of_model(model)).logged
        except (BadRecording, OSError) as error:
            raise BadInput(f"Cannot read {path}: {_reason(error)}.") from None
        return cls(str(path), [_inputs(one.inputs) for one in logged])

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401  as in Sequence
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Rows({self._title}, {len(self):,} rows)"

    def shuffled(self, seed: int) -> Iterator[Row]:
        """Return an endless iterator over all rows, in a new random order for each pass.

        Equal seeds give equal orders.
        """
        random = Random(seed)
        while True:
            yield from random.sample(self._rows, len(self._rows))


def _column(texts: list[str]) -> Sequence[int | float | str]:
    if all(map(_INTEGER.fullmatch, texts)):
        return [int(text) for text in texts]
    if all(map(_NUMBER.fullmatch, texts)):
        return [float(text) for text in texts]
    return texts


def _features(record: bytes) -> Row:
    found = {}
    for name, feature in official.Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            found[name] = np.array(getattr(feature, kind).value, _DTYPES[kind])
    return found


def _inputs(request: bytes) -> Row:
    return {
        name: tensor.from_proto(proto) for name, proto in official.PredictRequest.FromString(request).inputs.items()
    }


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")
