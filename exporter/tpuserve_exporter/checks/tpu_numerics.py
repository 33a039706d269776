"""Emulates products of bfloat16 operands on the CPU, as on a TPU, and compares the answers (`--tpu-numerics`).

The emulation omits other TPU differences: the order of sums, and its own functions for exp, tanh and others.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tpuserve_exporter.checks.difference import COARSE
from tpuserve_exporter.checks.parity import compare_cases
from tpuserve_exporter.checks.parity_result import ParityResult
from tpuserve_exporter.checks.program_runs import run_programs
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.runnable import Runnable
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_formats.manifest.device import ManifestDevice

_TOLERANCE = COARSE["bfloat16"]


def compare_numerics(
    version: Path,
    device: ManifestDevice,
    signatures: Mapping[str, Signature],
    samples: Mapping[str, Tensors],
    source: Runnable,
    options: ExportOptions,
    progress: Progress,
    warn: Callable[[str], None],
) -> dict[str, ParityResult]:
    """Compare every program's emulated answers with the source's, by signature. Differences do not fail the export.

    `warn` takes differences beyond bfloat16's usual ones, and rows with another first class. Raises as `run_programs`.
    """
    answers = run_programs(version, device, signatures, samples, options, progress, lambda _: None, in_bfloat16=True)
    found = {}
    for name, signature in signatures.items():
        ways = {way: one for way, one in answers.items() if one.knows(signature)}
        if not ways:
            continue
        sizes = options.batch_sizes
        found[name] = compare_cases(signature, samples[name], sizes, source, ways, _TOLERANCE, padded=False)
        for warning in _warnings(name, found[name]):
            warn(warning)
    return found


def _warnings(name: str, result: ParityResult) -> list[str]:
    emulated = "with bfloat16 products, as on a TPU (emulated)"
    beyond = [f"{name}, {emulated}: {one.difference.beyond}" for one in result.failed[:1]]
    others = result.other_classes()
    return beyond + ([f"{name}, {emulated}: the first class differs ({', '.join(others)} rows)"] if others else [])
