"""A version on Vertex AI: its needs, and the gcloud commands that upload, deploy and call it."""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tpuserve_exporter.deployment.checked_version import CheckedVersion, ManifestRows, read_numbered
from tpuserve_exporter.deployment.machines import VertexMachine
from tpuserve_exporter.deployment.names import Image
from tpuserve_exporter.deployment.plan import ServerNeeds
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.store_uri import StoreUri
from tpuserve_exporter.options.tpu import GIB
from tpuserve_exporter.programs.version_programs import Entry

_DEFAULT_SIGNATURE: Final = "serving_default"
# An example with more values is too long for a script.
_MOST_VALUES: Final = 1024
_VALUES: Final = {"string": "", "bool": False, "float16": 0.0, "bfloat16": 0.0, "float32": 0.0, "float64": 0.0}


class TensorRow(Entry):
    """An input in a manifest. None in `shape` is a free dimension, and a `shape` of None an unknown rank."""

    dtype: str
    shape: tuple[int | None, ...] | None
    row_splits: tuple[str, ...] | None = None


class SignatureRow(Entry):
    """The inputs of a signature by name."""

    inputs: Mapping[str, TensorRow]


class SignatureRows(Entry):
    """The signatures in a manifest by name."""

    signatures: Mapping[str, SignatureRow]

    def example(self) -> dict[str, Any] | None:
        """Return a request with one instance for the default signature, or for the first one.

        Return None if JSON cannot express an input as rows, or if the example has more than 1,024 values.
        """
        names = list(self.signatures)
        if not names:
            return None
        name = _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in names else names[0]
        inputs = self.signatures[name].inputs
        values = {key: _row(tensor) for key, tensor in inputs.items()}
        if not values or None in values.values() or sum(_size(one) for one in inputs.values()) > _MOST_VALUES:
            return None
        instance = values if len(values) > 1 else next(iter(values.values()))
        parameters = {} if name == _DEFAULT_SIGNATURE else {"parameters": {"signature_name": name}}
        return {"instances": [instance], **parameters}

    @property
    def has_text(self) -> bool:
        """True if an input is a string, of which the example has empty ones."""
        return any(one.dtype == "string" for row in self.signatures.values() for one in row.inputs.values())


def _size(tensor: TensorRow) -> int:
    return math.prod(_sizes(tensor.shape or ()))


def _sizes(shape: Sequence[int | None]) -> list[int]:
    """Return the sizes without the rows, with 1 for each free dimension."""
    return [1 if size is None else size for size in shape[1:]]


def _row(tensor: TensorRow) -> Any:  # noqa: ANN401 - nested lists, or one value
    """Return the value of one row, or None for a tensor without rows, a ragged tensor, and a dtype without JSON."""
    value = 0 if "int" in tensor.dtype else _VALUES.get(tensor.dtype)
    if value is None or not tensor.shape or tensor.shape[0] is not None or tensor.row_splits is not None:
        return None
    if _size(tensor) > _MOST_VALUES:
        return None
    row: Any = value
    for size in reversed(_sizes(tensor.shape)):
        row = [row] * size
    return row


# Memory of a server on a CPU without the version, as in deploy/kubernetes/base. An allowance, and not a measurement.
_PROCESS_GIB: Final = 2


@dataclass(frozen=True, slots=True)
class VertexVersion:
    """A version that fits on `machine`.

    `needed_gib` is the memory of a server. `startup_s` is its startup budget, or None on a CPU, where it is unknown.
    `variables` are the environment variables that the server needs on the machine. `example` is a request with
    placeholders, or None if the signature has no short one. `has_text` is true if it has empty strings.
    """

    path: Path
    machine: VertexMachine
    needed_gib: int
    startup_s: int | None
    example: dict[str, Any] | None
    has_text: bool
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, machine: VertexMachine, check: Path | None = None) -> Self:
        """Read a version for `machine`. `check` is a report of a preflight, as in `CheckedVersion.read`.

        A server on a CPU needs 2 GiB and the size of all files, rounded up to whole GiB. `ServerNeeds` has the memory
        of a server on a TPU.

        Raises:
            SourceUnreadable: `path` is no version, or has no device programs and the machine has a TPU.
            OptionConflict: `check` is the report of another version.
            NotChecked: the version was not checked for the TPU.
            DoesNotFit: the TPU or the memory of the machine is too small.
        """
        signatures = read_numbered(path, SignatureRows)
        if machine.topology is None:
            needed_gib = _PROCESS_GIB + math.ceil(read_numbered(path, ManifestRows).size_bytes / GIB)
            startup_s, variables = None, {}
        else:
            checked = CheckedVersion.read(path, machine.topology, check)
            needs = ServerNeeds.of(checked)
            needed_gib, startup_s = needs.request_gib, needs.startup_s
            variables = _tpu_variables(checked)
        machine.check_memory(needed_gib)
        return cls(path, machine, needed_gib, startup_s, signatures.example(), signatures.has_text, variables)

    @property
    def base_name(self) -> str:
        """The name of the base path, which is usually the model's name."""
        return self.path.absolute().parent.name

    @property
    def number(self) -> str:
        return self.path.absolute().name


def _tpu_variables(checked: CheckedVersion) -> dict[str, str]:
    # Without this variable the server falls back to the CPU if it finds no TPU.
    device = {"TPUSERVE_SERVE_DEVICE": "tpu"}
    return device if checked.mesh.devices == 1 else {**device, "TPUSERVE_SERVE_MESH": str(checked.mesh)}


# Delimiters for values with commas, by preference. See `gcloud topic escaping`.
_DELIMITERS: Final = (",", ";", "|", "#", "@@", "~~", "%%")
_INDENT: Final = " \\\n    "
_END: Final = "JSON"


@dataclass(frozen=True, slots=True)
class GcloudCommand:
    """One command. `comment` states its purpose, and `stdin` is a line of JSON that the command reads."""

    comment: str
    words: tuple[str, ...]
    stdin: str | None = None

    @property
    def text(self) -> str:
        """The command with a comment, as lines of a script. Each flag has its own line."""
        flags = [index for index, word in enumerate(self.words) if word.startswith("--")]
        first = flags[0] if flags else len(self.words)
        lines = _INDENT.join([shlex.join(self.words[:first]), *map(shlex.quote, self.words[first:])])
        here = "" if self.stdin is None else f" <<'{_END}'\n{self.stdin}\n{_END}"
        return f"# {self.comment}\n{lines}{here}\n"


def dictionary(flag: str, values: Mapping[str, str]) -> str:
    """Return `--flag=KEY=VALUE,…` with a delimiter that no value contains.

    Raises ValueError if every known delimiter occurs in a value.
    """
    delimiter = next((one for one in _DELIMITERS if not any(one in value for value in values.values())), None)
    if delimiter is None:
        raise ValueError(f"the values of {flag} contain all of {' '.join(_DELIMITERS)}")
    prefix = "" if delimiter == "," else f"^{delimiter}^"
    return f"{flag}={prefix}{delimiter.join(f'{key}={value}' for key, value in values.items())}"


_PORT: Final = 8080
_HEALTH_ROUTE: Final = "/health"
_PREDICT_ROUTE: Final = "/predict"
# The server's default of --load_timeout_seconds, which is also the platform's default of a deployment.
_LOAD_TIMEOUT_S: Final = 1800
# Vertex AI may add a machine with a TPU during this time.
_MACHINE_S: Final = 600
# The platform's limit of a deployment.
_MOST_DEPLOYMENT_S: Final = 7200
# IDs of endpoints, which may have fewer characters than those of models.
_ID: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# IDs that the platform chose.
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_REQUEST_FILE: Final = "request.json"


@dataclass(frozen=True, slots=True)
class VertexDeployment:
    """A version on an endpoint. With `endpoint`, it exists, and otherwise the commands create one.

    `artifact` is the version's directory in the bucket, or its base path. `variables` are added to those of the
    version.

    Raises:
        OptionConflict: `artifact` is another version, or a name is no ID of Vertex AI.
    """

    model: str
    version: VertexVersion
    artifact: StoreUri
    image: Image
    project: str
    region: str
    min_replicas: int
    max_replicas: int
    endpoint: str | None
    variables: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.artifact.name.isdecimal() and self.artifact.name != self.version.number:
            raise OptionConflict(
                f"--artifact-uri {self.artifact} is version {self.artifact.name}, and --version is "
                f"{self.version.number}"
            )
        _check_id(self.model_id, "--model-name")
        if self.endpoint is None or not _NUMBER.fullmatch(self.endpoint):
            _check_id(self.endpoint_id, "--endpoint")

    @property
    def endpoint_id(self) -> str:
        return self.endpoint or _to_id(self.model)

    @property
    def model_id(self) -> str:
        """The ID of the uploaded version. Each version is a separate model, so an upload replaces none."""
        return f"{_to_id(self.model)}-{self.version.number}"

    @property
    def commands(self) -> dict[str, GcloudCommand]:
        """The commands in their order, by step."""
        made = {
            "upload": self._upload(),
            "create": self._create(),
            "deploy": self._deploy(),
            "predict": self._predict(),
        }
        return {step: command for step, command in made.items() if step != "create" or self.endpoint is None}

    @property
    def notes(self) -> list[str]:
        """Sentences on facts that the commands cannot change."""
        version, found = self.version, []
        if self.artifact.name != version.number:
            found.append(
                f"the server serves the newest version in {self.artifact}. Use {self.artifact / version.number} to "
                f"serve version {version.number}"
            )
        if version.machine.memory_gib is None:
            found.append(
                f"the memory of {version.machine.machine_type} is unknown here. A server needs {version.needed_gib} GiB"
            )
        if version.example is None:
            found.append(f"no signature has a short example. Write {_REQUEST_FILE} before the last command")
        elif version.has_text:
            found.append("the example request has empty strings. Replace them with real values")
        return found

    def script(self, author: str) -> str:
        """Return the commands as a script for bash, with the notes as comments."""
        head = [
            "#!/usr/bin/env bash",
            f"# Version {self.version.number} of {self.model} on Vertex AI, {self.version.machine.machine_type}.",
            f"# Written by {author}.",
            *(f"# Note: {note}." for note in self.notes),
            "set -euo pipefail",
        ]
        return "\n".join(["\n".join(head) + "\n", *(command.text for command in self.commands.values())])

    def to_json(self) -> dict[str, Any]:
        """Return the commands as arrays of words, and the values that they are made from."""
        machine = self.version.machine
        return {
            "model": self.model,
            "version": self.version.number,
            "model_id": self.model_id,
            "endpoint_id": self.endpoint_id,
            "machine_type": machine.machine_type,
            "topology": None if machine.topology is None else machine.topology.name,
            "memory_gib": {"needed": self.version.needed_gib, "available": machine.memory_gib},
            "replicas": {"min": self.min_replicas, "max": self.max_replicas},
            "commands": {step: list(command.words) for step, command in self.commands.items()},
            "request": self.version.example,
            "notes": self.notes,
        }

    @property
    def _place(self) -> tuple[str, str]:
        return f"--project={self.project}", f"--region={self.region}"

    def _upload(self) -> GcloudCommand:
        words = (
            *("gcloud", "ai", "models", "upload", *self._place),
            f"--model-id={self.model_id}",
            f"--display-name={self.model_id}",
            f"--container-image-uri={self.image}",
            f"--artifact-uri={self.artifact}",
            f"--container-ports={_PORT}",
            f"--container-health-route={_HEALTH_ROUTE}",
            f"--container-predict-route={_PREDICT_ROUTE}",
            *self._settings(),
        )
        return GcloudCommand("Upload the version as a model. The platform copies the artifact.", words)

    def _settings(self) -> Iterator[str]:
        variables = {"MODEL_NAME": self.model, **self.version.variables, **self.variables}
        startup_s = self.version.startup_s or 0
        if startup_s > _LOAD_TIMEOUT_S:
            variables.setdefault("TPUSERVE_SERVE_LOAD_TIMEOUT_SECONDS", str(startup_s))
        try:
            yield dictionary("--container-env-vars", variables)
        except ValueError as error:
            raise OptionConflict(f"{error}. Change an --env") from error
        if startup_s + _MACHINE_S > _LOAD_TIMEOUT_S:
            yield f"--container-deployment-timeout-seconds={min(startup_s + _MACHINE_S, _MOST_DEPLOYMENT_S)}"

    def _create(self) -> GcloudCommand:
        words = (
            *("gcloud", "ai", "endpoints", "create", *self._place),
            f"--endpoint-id={self.endpoint_id}",
            f"--display-name={self.endpoint_id}",
        )
        return GcloudCommand("Create the endpoint. For the next version, render again with --endpoint.", words)

    def _deploy(self) -> GcloudCommand:
        # The platform does not scale machines with TPUs, so a maximum would have no effect.
        scaled = [] if self.version.machine.topology else [f"--max-replica-count={self.max_replicas}"]
        words = (
            *("gcloud", "ai", "endpoints", "deploy-model", self.endpoint_id, *self._place),
            f"--model={self.model_id}",
            f"--display-name={self.model_id}",
            f"--machine-type={self.version.machine.machine_type}",
            f"--min-replica-count={self.min_replicas}",
            *scaled,
            "--traffic-split=0=100",
        )
        return GcloudCommand("Deploy the model, and send all requests of the endpoint to it.", words)

    def _predict(self) -> GcloudCommand:
        example = self.version.example
        words = (
            *("gcloud", "ai", "endpoints", "predict", self.endpoint_id, *self._place),
            f"--json-request={_REQUEST_FILE if example is None else '-'}",
        )
        return GcloudCommand("Predict.", words, None if example is None else json.dumps(example))


def _to_id(name: str) -> str:
    return re.sub(r"[_.]", "-", name.lower())


def _check_id(made: str, option: str) -> None:
    if not _ID.fullmatch(made):
        raise OptionConflict(
            f"{made!r} is not an ID of Vertex AI: up to 63 lowercase letters, digits and '-', and a letter first. Set "
            f"another {option}"
        )
