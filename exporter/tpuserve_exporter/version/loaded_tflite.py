"""A written `model.tflite`, run by LiteRT."""

from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.tensorflow_start import stderr_caught


class TfliteModel:
    """Answers the signatures that it has."""

    def __init__(self, path: Path) -> None:
        """Raises ParityFailed where LiteRT does not take the file."""
        from ai_edge_litert.interpreter import Interpreter

        try:
            # It tells of the delegates that it has, on the descriptor itself.
            with stderr_caught():
                self._interpreter = Interpreter(model_path=str(path))
        except (ValueError, RuntimeError) as error:
            raise ParityFailed(f"{path.name} does not load in LiteRT: {error}") from error
        self.signatures: frozenset[str] = frozenset(self._interpreter.get_signature_list())
        self._runners: dict[str, Any] = {}  # LiteRT is untyped

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Outputs by name. Raises ParityFailed where LiteRT fails."""
        try:
            with stderr_caught():
                if signature.name not in self._runners:
                    self._runners[signature.name] = self._interpreter.get_signature_runner(signature.name)
                outputs: Tensors = self._runners[signature.name](**inputs)
        except (ValueError, RuntimeError) as error:
            raise ParityFailed(f"{signature.name} fails in LiteRT: {error}") from error
        return outputs
