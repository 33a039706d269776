"""A written `model.tflite` in LiteRT."""

from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.models.frameworks import stderr_caught
from tpuserve_exporter.terms.signature import Signature, Tensors


class TfliteModel:
    """A model in LiteRT, which runs the signatures in its file."""

    def __init__(self, path: Path) -> None:
        """Load the file. Raises ParityFailed if LiteRT refuses it."""
        from ai_edge_litert.interpreter import Interpreter

        try:
            # LiteRT writes messages on its delegates directly to the file descriptor.
            with stderr_caught():
                self._interpreter = Interpreter(model_path=str(path))
        except (ValueError, RuntimeError) as error:
            raise ParityFailed(f"{path.name} does not load in LiteRT: {error}") from error
        self.signatures: frozenset[str] = frozenset(self._interpreter.get_signature_list())
        self._runners: dict[str, Any] = {}  # LiteRT is untyped

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises ParityFailed if LiteRT fails."""
        try:
            with stderr_caught():
                if signature.name not in self._runners:
                    self._runners[signature.name] = self._interpreter.get_signature_runner(signature.name)
                outputs: Tensors = self._runners[signature.name](**inputs)
        except (ValueError, RuntimeError) as error:
            raise ParityFailed(f"{signature.name} fails in LiteRT: {error}") from error
        return outputs
