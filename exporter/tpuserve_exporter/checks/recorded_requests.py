"""Compares a version's answers to recorded requests, its own or another version's, with the recorded answers."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuserve_exporter.checks.difference import Tolerance, compare, merge
from tpuserve_exporter.errors import SamplesUnfit, SourceUnreadable, reason_of
from tpuserve_exporter.terms.signature import Signature, Tensors
from tpuserve_exporter.version.loaded_model import SessionModel, open_session
from tpuserve_exporter.version.warmup import read_recorded
from tpuserve_formats.counted import counted
from tpuserve_formats.manifest import MANIFEST_FILE


@dataclass(frozen=True, slots=True)
class Allowed:
    """A tolerance and the `reason` for it: the dtype and the manifest, or the options."""

    tolerance: Tolerance
    reason: str

    def __str__(self) -> str:
        return f"{self.tolerance} ({self.reason})"


@dataclass(frozen=True, slots=True)
class RecordedCheck:
    """The result of comparing `requests`. `output` differs most, by `largest`. `beyond` describes the first failure."""

    golden: Path
    requests: int
    output: str
    largest: float
    allowed: Allowed
    beyond: str = ""

    def __str__(self) -> str:
        verdict = f"{self.beyond}. The tolerance is {self.allowed}" if self.beyond else self._agreement
        return f"{counted(self.requests, 'request')} recorded in {self.golden}: {verdict}"

    @property
    def _agreement(self) -> str:
        if not self.output:
            return "all answers agree; none holds a float"
        return f"all answers agree; largest difference {self.largest:.3g} in `{self.output}`, tolerance {self.allowed}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as fields of a JSON document."""
        tolerance = self.allowed.tolerance
        return {
            "golden": str(self.golden),
            "requests": self.requests,
            "output": self.output or None,
            "max_abs_difference": self.largest if math.isfinite(self.largest) else None,
            "atol": tolerance.atol,
            "rtol": tolerance.rtol,
            "allowed_by": self.allowed.reason,
            "beyond": self.beyond or None,
        }


def check_recorded(
    version: Path, golden: Path, atol: float | None, rtol: float | None, advance: Callable[[int, int], None]
) -> RecordedCheck:
    """Send `version`, on this machine's CPU, the requests that `golden` recorded, and compare the answers.

    TensorFlow must be started. The tolerance comes from the options, or is the wider one of the two manifests.

    Raises:
        SourceUnreadable: if `golden` has no recorded requests.
        SessionLoadFailed: if `version` does not load.
        SamplesUnfit: if `version` refuses a request.
    """
    allowed = choose_allowed((version, golden), atol, rtol)
    found = []
    with open_session(version) as session:
        recorded = read_recorded(golden, session)
        for done, (signature, inputs, answer) in enumerate(recorded):
            advance(done, len(recorded))
            found.append(compare(answer, _run(session, signature, inputs), allowed.tolerance))
    if not found:
        raise SourceUnreadable(
            f"{golden} has no recorded answers. Export it again to record them, or use --against with another version"
        )
    outputs = {
        name: merge(one.outputs[name] for one in found if name in one.outputs)
        for name in sorted({name for one in found for name in one.outputs})
    }
    output = max(outputs, key=lambda name: outputs[name].max_abs, default="")
    beyond = next((one.beyond for one in found if one.beyond), "")
    return RecordedCheck(golden, len(found), output, outputs[output].max_abs if output else 0.0, allowed, beyond)


def _run(session: SessionModel, signature: Signature, inputs: Tensors) -> Tensors:
    import tensorflow as tf

    try:
        return session.run(signature, inputs)
    except tf.errors.OpError as error:
        raise SamplesUnfit(f"{signature.name} fails on a recorded request: {reason_of(error)}") from error


def choose_allowed(versions: tuple[Path, ...], atol: float | None, rtol: float | None) -> Allowed:
    """Return the options' values. For a missing one, return the widest value in the manifests of `versions`."""
    found = [manifest for version in dict.fromkeys(versions) for manifest in _tolerance(version)]
    widest, dtype, origin = max(
        found or [(Tolerance.choose("float32", False, None, None), "float32", "")],
        key=lambda each: (each[0].atol, each[0].rtol, each[1] != "float32"),
    )
    tolerance = Tolerance(widest.atol if atol is None else atol, widest.rtol if rtol is None else rtol)
    if atol is not None and rtol is not None:
        return Allowed(tolerance, "set with --atol and --rtol")
    reason = f"{dtype}, from the manifest of {origin}" if origin else dtype
    return Allowed(tolerance, f"{reason}; set --atol and --rtol to change it")


def _tolerance(version: Path) -> Iterator[tuple[Tolerance, str, str]]:
    """Yield the tolerance and the dtype of a version's manifest, or nothing if it cannot be read."""
    try:
        manifest = json.loads((version / MANIFEST_FILE).read_bytes())
        parity = manifest["parity"]
        yield Tolerance(float(parity["atol"]), float(parity["rtol"])), str(manifest["compute_dtype"]), str(version)
    except (OSError, ValueError, KeyError, TypeError):
        return
