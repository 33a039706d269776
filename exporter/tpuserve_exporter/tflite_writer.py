"""`--also tflite`: the model for LiteRT, where TensorFlow Serving and this server look for it."""

import importlib.util
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tpuserve_exporter.errors import CannotLower, MissingExtra, reason_of
from tpuserve_exporter.saved_model_writer import write_saved_model
from tpuserve_exporter.signature import read_signatures
from tpuserve_exporter.signatures.device_part import DevicePart
from tpuserve_exporter.signatures.kinds import serve_signatures
from tpuserve_exporter.signatures.request import DEFAULT_SIGNATURE, TENSOR_KIND, SignatureRequest
from tpuserve_exporter.tensorflow_start import stderr_caught

TFLITE_FILE = Path("model.tflite")
# The first place that an error's line names, and the operation it complains of.
_LACKING = re.compile(r"(?:\"([^\"@]+)@[^\"]*\".*)?'tf\.(\w+)' op is neither a custom op nor a flex op")
_MOST_PLACES = 5


def check_litert() -> None:
    """Raises MissingExtra where there is nothing to check a TensorFlow Lite model with."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise MissingExtra("--also tflite is checked with LiteRT: pip install 'tpuserve-exporter[tflite]'")


def write_tflite(version: Path, device: DevicePart | None, requests: Sequence[SignatureRequest]) -> int:
    """Convert the device part, with every signature of tensors, or what `version` holds; returns the file's bytes.

    Host parts stay out: TensorFlow Lite can decode and parse nothing. Raises CannotLower for what it lacks.
    """
    if device is None:
        return _convert(version, version, _signatures_of_tensors(version))
    wanted = [request for request in requests if request.kind == TENSOR_KIND] or [SignatureRequest(DEFAULT_SIGNATURE)]
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder, "device")
        signatures = serve_signatures(wanted, device, {})
        write_saved_model(bare, device, device.call, signatures.values())
        return _convert(bare, version, sorted(signatures))


def _signatures_of_tensors(saved_model: Path) -> list[str]:
    """Of a SavedModel that was taken over: those that take no strings. Raises CannotLower where there is none."""
    from tensorflow.python.saved_model.loader_impl import parse_saved_model

    definitions = parse_saved_model(str(saved_model)).meta_graphs[0].signature_def
    found = [
        signature.name
        for signature in read_signatures(definitions).values()
        if all(spec.dtype != "string" for spec in signature.inputs.values())
    ]
    if not found:
        raise CannotLower("--also tflite: every signature takes strings, and TensorFlow Lite can parse none")
    return found


def _convert(saved_model: Path, version: Path, signatures: Sequence[str]) -> int:
    import tensorflow as tf

    try:
        with stderr_caught():
            converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model), signature_keys=list(signatures))
            content: bytes = converter.convert()
    except Exception as error:  # ConverterError is private, and not the only one
        raise CannotLower(_explain(str(error), reason_of(error))) from error
    return (version / TFLITE_FILE).write_bytes(content)


def _explain(message: str, reason: str) -> str:
    places = {found[2]: found[1] for line in message.splitlines() if (found := _LACKING.search(line))}
    if not places:
        return f"--also tflite: the model cannot be converted: {reason[:300]}"
    named = [f"{operation} ({place})" if place else operation for operation, place in sorted(places.items())]
    lacking = ", ".join(named[:_MOST_PLACES]) + (f" and {more} more" if (more := len(named) - _MOST_PLACES) > 0 else "")
    if "bf16" in message:
        return (
            f"--also tflite: TensorFlow Lite has no bfloat16 for {lacking}: export in float32 "
            "(--compute-dtype float32), or without --also tflite"
        )
    return f"--also tflite: TensorFlow Lite lacks {lacking}, or takes it in no such form: leave --also tflite out"
