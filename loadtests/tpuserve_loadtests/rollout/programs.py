"""Programs that a rollout runs with a time limit: git, and kubectl for the objects of Kubernetes."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from tpuserve_loadtests.rollout.model_config_text import BadConfig

_GIT_LIMIT_S: Final = 120.0
# kubectl limits each request itself, and reports the API server. The limit of the process is for its plugins.
_REQUEST_TIMEOUT_S: Final = 30
_KUBECTL_LIMIT_S: Final = 60.0
_CONFLICT: Final = "(Conflict)"
_SHOWN_OUTPUT: Final = 60
_MOST_REASONS: Final = 5


class Conflict(BadConfig):
    """Error for a text that another process changed since the last `read`. Read it again."""


def run_git(*arguments: str, limit_s: float = _GIT_LIMIT_S) -> str:
    """Run git and return its output. Git never asks for credentials. Raises BadConfig."""
    return _run(["git", *arguments], None, limit_s, {"GIT_TERMINAL_PROMPT": "0"}).strip()


class KubernetesObject:
    """An object that `kubectl` reads and replaces with the access of its current context. Belongs to one thread.

    A replacement has the resource version of the document as its precondition: the API server refuses it with 409 if
    another client changed the object meanwhile.
    """

    def __init__(self, path: str, request_timeout_s: int = _REQUEST_TIMEOUT_S) -> None:
        self._path = path
        self._timeout = f"--request-timeout={request_timeout_s}s"

    def read(self) -> Mapping[str, Any]:
        """Return the object. Raises BadConfig."""
        return self._kubectl(["get", "--raw", self._path])

    def replace(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Mapping[str, Any]:
        """Replace the object, and return it with its new resource version. Raises Conflict or BadConfig."""
        path = f"{self._path}?dryRun=All" if dry_run else self._path
        return self._kubectl(["replace", "--raw", path, "--filename", "-"], json.dumps(document))

    def _kubectl(self, arguments: list[str], stdin: str | None = None) -> Mapping[str, Any]:
        try:
            output = _run(["kubectl", *arguments, self._timeout], stdin, _KUBECTL_LIMIT_S, {})
        except BadConfig as error:
            raise (Conflict if _CONFLICT in str(error) else BadConfig)(str(error)) from None
        try:
            document = json.loads(output)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            shown = " ".join(output.split())[:_SHOWN_OUTPUT]
            raise BadConfig(f"the API server's response is no JSON object: {shown!r}")
        return document


def _run(command: list[str], stdin: str | None, limit_s: float, variables: Mapping[str, str]) -> str:
    """Run a program and return its output.

    Raises BadConfig with Git's first error and the reasons of its server, or with the last line of the errors.

    The program has its own session, so that Ctrl-C does not end it while the labels move back.
    """
    source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    try:
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **variables},
        )
    except OSError as error:
        raise BadConfig(f"cannot run {command[0]}: {error.strerror}") from None
    with process:
        try:
            output, errors = process.communicate(stdin, timeout=limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # also its children, such as git's transport
            if isinstance(error, subprocess.TimeoutExpired):
                words = f"{command[0]} did not end within {limit_s:g} s; its effect is unknown"
                raise BadConfig(words) from None
            raise
    if process.returncode:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        last = lines[-1] if lines else f"{command[0]} ended with exit code {process.returncode}"
        failure = next((line for line in lines if line.startswith(("fatal:", "error:"))), last)
        # The error of a refused push has no reason. The server's words and the refused branches are in other lines.
        reasons = [" ".join(line.split()) for line in lines if line.startswith(("remote:", "! ["))]
        raise BadConfig("; ".join([failure, *reasons[:_MOST_REASONS]]))
    return output
