"""Check of a version's SavedModel for operations that the server would refuse to load."""

from pathlib import Path

from google.protobuf.message import DecodeError

from tpuserve_formats.errors import FormatError
from tpuserve_formats.safety.graph import read_graphs
from tpuserve_server.command.settings import Settings
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.executors.tensorflow import screening

# `saved_model.pbtxt` is checked at load, because only TensorFlow parses it as its loader does.
_FILE = "saved_model.pb"


def check_operations(settings: Settings, version: Path) -> None:
    """Check the graph that the server would load, without TensorFlow. Reads the whole file; blocks.

    Raises:
        FailedPrecondition: the graph has operations that the server refuses.
        InvalidArgument: the file is damaged, or an asset is outside the version.
    """
    file = version / _FILE
    if not file.is_file():
        return
    try:
        graphs = list(read_graphs(file.read_bytes()))
    except (FormatError, DecodeError) as error:
        raise InvalidArgument(f"{_FILE} is damaged. Copy or export the version again") from error
    screening.check_operations(graphs, settings.tensorflow.tags, settings.safety.allowed_ops)
