"""The gcloud commands that upload, deploy and call a version on Vertex AI."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tpuserve_exporter.deployment.image import Image
from tpuserve_exporter.deployment.vertex_version import VertexVersion
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.store_uri import StoreUri

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
        """The command with a comment, as lines of a script. Each flag has a line of its own."""
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
        """Yield the flags for environment variables and for the time limit of the deployment."""
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
    """Return the name with the characters of an ID."""
    return re.sub(r"[_.]", "-", name.lower())


def _check_id(made: str, option: str) -> None:
    if not _ID.fullmatch(made):
        raise OptionConflict(
            f"{made!r} is not an ID of Vertex AI: up to 63 lowercase letters, digits and '-', and a letter first. Set "
            f"another {option}"
        )
