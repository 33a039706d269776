"""Runs a version's device programs on this machine's CPU, on the inputs of the comparison."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tpuserve_exporter.checks.parity import list_cases
from tpuserve_exporter.checks.program_answers import ProgramAnswers, list_answers
from tpuserve_exporter.checks.recorded_answers import RecordedAnswers
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.programs.host_model import HOST_FOLDER
from tpuserve_exporter.programs.program_model import ProgramModel
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.version.loaded_model import SessionModel, open_session
from tpuserve_formats.manifest.device import ManifestDevice


def run_programs(
    version: Path,
    device: ManifestDevice,
    signatures: Mapping[str, Signature],
    samples: Mapping[str, Tensors],
    options: ExportOptions,
    progress: Progress,
    warn: Callable[[str], None],
    *,
    in_bfloat16: bool = False,
) -> dict[str, RecordedAnswers]:
    """Return the programs' answers to every case of every signature, by their name in the comparison, one per length.

    With `in_bfloat16`, operands of products are rounded to bfloat16, as on a TPU. `warn` takes the names of programs
    that had no inputs.

    Raises:
        ParityFailed: if a program does not run.
        SessionLoadFailed: if the host part does not load.
        SamplesUnfit: if inputs cannot be padded.
    """
    title = "Emulate a TPU's bfloat16 products" if in_bfloat16 else "Run the device programs on the CPU"
    with progress.step(title) as step, _open_host(version, device) as host:
        ways = dict(list_answers(ProgramModel(version, device, in_bfloat16=in_bfloat16), device, host))
        answers = {}
        for done, (way, programs) in enumerate(ways.items()):
            step.advance(done, len(ways))
            answers[way], left = _run(programs, signatures, samples, options)
            for name in left:
                warn(
                    f"{name}: its {way} is not checked, because the inputs are longer. Use --check with shorter inputs"
                )
        step.detail = f"{sum(map(len, answers.values()))} request(s)"
    gc.collect()
    return answers


def _run(
    programs: ProgramAnswers,
    signatures: Mapping[str, Signature],
    samples: Mapping[str, Tensors],
    options: ExportOptions,
) -> tuple[RecordedAnswers, list[str]]:
    """Return the answers, and the signatures whose inputs are too long for these programs."""
    answers, left = RecordedAnswers(), []
    for name, signature in signatures.items():
        if not programs.has(signature):
            continue
        if programs.takes(signature, samples[name]):
            cases = list_cases(signature, samples[name], options.batch_sizes, padded=True)
            answers.record(programs, signature, (case.inputs for case in cases))
        else:
            left.append(name)
    return answers, left


@contextlib.contextmanager
def _open_host(version: Path, device: ManifestDevice) -> Iterator[SessionModel | None]:
    if all(entry.host is None for entry in device.signatures.values()):
        yield None
        return
    with open_session(version / HOST_FOLDER) as host:
        yield host
