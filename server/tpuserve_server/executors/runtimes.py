"""Runtimes: the packages that run versions. Each is an extra of tpuserve-server, so any of them may be missing."""

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tpuserve_server.core.terms.errors import FailedPrecondition


class MissingRuntime(FailedPrecondition):
    """Error of a version whose runtime is not installed. The message has the command that installs it."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A package that runs versions, and the extra that installs it. Methods do not import the package.

    `runs` describes these versions, in the plural. `distribution` is the name of the package on an index.
    """

    name: str
    runs: str
    module: str
    distribution: str
    extra: str

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
            return f"{version(self.distribution)}, for {self.runs}"
        except PackageNotFoundError:  # such as tensorflow-cpu instead of tensorflow
            return f"installed, for {self.runs}"

    @property
    def installation(self) -> str:
        """Command that installs the package."""
        return f"pip install 'tpuserve-server[{self.extra}]'"

    def missing(self, subject: str) -> MissingRuntime:
        """Return the error of a version that needs this package. `subject` ends with a verb: `model.tflite needs`."""
        return MissingRuntime(f"{subject} {self.name}, which is not installed: {self.installation}")


TENSORFLOW = Runtime("TensorFlow", "SavedModels", "tensorflow", "tensorflow", "tensorflow")
JAX = Runtime("JAX", "device programs", "jax", "jax", "pjrt")
LITERT = Runtime("LiteRT", "TensorFlow Lite models", "ai_edge_litert", "ai-edge-litert", "tflite")
OPENVINO = Runtime("OpenVINO", "SavedModels that it runs faster than TensorFlow", "openvino", "openvino", "openvino")
RUNTIMES = (TENSORFLOW, JAX, LITERT, OPENVINO)
