"""ExecutorPlugin: everything that the server knows of an executor. Light, because the command line imports it."""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.setting import Setting

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tpuserve_server.core.system.memory import HostMemory
    from tpuserve_server.core.terms.deadline import Clock
    from tpuserve_server.core.terms.servable import DeviceMetrics
    from tpuserve_server.core.terms.storage import FileName
    from tpuserve_server.executors.candidate import Candidate

_Options = TypeVar("_Options")


class MissingRuntime(FailedPrecondition):
    """Error of a version whose runtime is not installed. The message has the command that installs it."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A package that runs versions. Methods do not import it.

    `runs` describes these versions, in the plural. `distributions` are the packages on an index whose versions decide
    the answers, the runtime's own first. `requirement` is pip's argument to install them.
    """

    name: str
    runs: str
    module: str
    distributions: tuple[str, ...]
    requirement: str

    @property
    def is_installed(self) -> bool:
        """Whether the package can be found."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def state(self) -> str:
        """Version of the package and its purpose, or the command that installs it."""
        if not self.is_installed:
            return f"not installed: {self.installation}"
        try:
            return f"{version(self.distributions[0])}, for {self.runs}"
        except PackageNotFoundError:  # such as tensorflow-cpu instead of tensorflow
            return f"installed, for {self.runs}"

    @property
    def installation(self) -> str:
        """Command that installs the package."""
        return f"pip install '{self.requirement}'"

    def missing(self, subject: str) -> MissingRuntime:
        """Return the error of a version that needs this package. `subject` ends with a verb: `model.tflite needs`."""
        return MissingRuntime(f"{subject} {self.name}, which is not installed: {self.installation}")


@dataclass(frozen=True, slots=True)
class SafetyOptions:
    """Properties of models for which this server refuses them otherwise."""

    allowed_ops: Annotated[
        tuple[str, ...],
        Setting(
            "Models",
            "Operations that models may have although they read or write files, run Python, reach other processes or "
            "are unknown, separated by commas. For models of trusted authors.",
            shown_default="none",
        ),
    ] = ()
    lenient_loads: Annotated[
        bool,
        Setting(
            "Models",
            "Serve versions that cannot answer any request, as TensorFlow Serving does: variables have no values, or "
            "every signature refuses a made-up row.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Options of all executors, and SafetyOptions, by class: `options[TensorFlowOptions].tags`."""

    groups: tuple[object, ...]

    def __getitem__(self, options_class: type[_Options]) -> _Options:
        return next(group for group in self.groups if isinstance(group, options_class))


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """Parts of the server that executors use.

    Loads reserve the size of their files in `memory`. `cache_dir` is the user's directory for caches of programs.
    `read_message` sets the fields of a message from the text proto that an option names, and raises an error for the
    operator.
    """

    options: ExecutorOptions
    metrics: "DeviceMetrics"
    clock: "Clock"
    memory: "HostMemory"
    cache_dir: Path
    read_message: "Callable[[FileName, Message], object]"


@dataclass(frozen=True, slots=True)
class FlagFinding:
    """Result of `--check_config` for the value of a flag."""

    severity: Literal["ok", "warning", "error"]
    flag: str
    message: str


@dataclass(frozen=True, slots=True)
class ExecutorPlugin:
    """Declaration of an executor, in the package that has it. The functions import the runtime, this module does not.

    - `options`: a dataclass. Its annotated fields declare flags (`core/terms/setting.py`), each with a `help`. Its
      module must not use `from __future__ import annotations`, which would hide them.
    - `make`: returns the candidate, or None if the options switch it off.
    - `model_files`: files of which a version has one, in the version's directory.
    - `runs`: whether the executor would load a version, for `--check_config`. None: a runtime that is installed runs
      every version with a model file. The function may raise the reason against the version.
    - `check_flags`: checks values of flags, for `--check_config`.
    - `check_version`: raises ServingError for a version that the executor would refuse, for `--check_config`.
    """

    runtime: Runtime
    options: type[Any]
    make: "Callable[[ExecutorContext], Candidate | None]"
    model_files: tuple[str, ...] = ()
    runs: Callable[[ExecutorOptions, Path], bool] | None = None
    check_flags: Callable[[ExecutorOptions], Iterator[FlagFinding]] | None = None
    check_version: Callable[[ExecutorOptions, Path], None] | None = None

    def would_run(self, options: ExecutorOptions, version_path: Path) -> bool:
        """Return whether the executor would load the version. Blocks. Raises ServingError as `runs` does."""
        if self.runs is not None:
            return self.runs(options, version_path)
        return self.runtime.is_installed and any((version_path / name).is_file() for name in self.model_files)
