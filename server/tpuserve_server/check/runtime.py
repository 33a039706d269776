"""Check that the package that runs a version is installed."""

from pathlib import Path

from tpuserve_server.command.settings import Settings
from tpuserve_server.executors.pjrt.manifest import ProgramManifest
from tpuserve_server.executors.runtimes import JAX, TENSORFLOW
from tpuserve_server.executors.tflite.candidate import MODEL_FILE


def check_runtime(settings: Settings, version: Path) -> None:
    """Check that an installed package runs the version, on a device that may be missing. Blocks.

    Raises:
        MissingRuntime: only TensorFlow runs the version, and it is not installed.
        FailedPrecondition: the version needs its device programs, and they cannot be used.
    """
    if TENSORFLOW.is_installed:
        return
    if settings.tflite.preferred and (version / MODEL_FILE).is_file():
        return
    if not JAX.is_installed or ProgramManifest.read(version) is None:
        raise TENSORFLOW.missing("the version's SavedModel needs")
