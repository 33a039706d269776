"""Putting the questions of the comparison to a version's device programs, run on this machine's CPU."""

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


def ask_programs(
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
    """Answers to every case of every signature, by what the comparison calls the programs: one way for each length.

    `in_bfloat16`, products are of operands rounded to that, as a TPU's are.

    `warn` is told of programs that nothing was put to. Raises ParityFailed where one does not run, SessionLoadFailed
    where the host part does not load, and SamplesUnfit for what cannot be padded.
    """
    title = "Emulate products of bfloat16, as on a TPU" if in_bfloat16 else "Run the device programs on the CPU"
    with progress.step(title) as step, _open_host(version, device) as host:
        ways = dict(list_answers(ProgramModel(version, device, in_bfloat16=in_bfloat16), device, host))
        answers = {}
        for done, (way, programs) in enumerate(ways.items()):
            step.advance(done, len(ways))
            answers[way], left = _ask(programs, signatures, samples, options)
            for name in left:
                warn(f"{name}: its {way} is not checked, as the inputs are longer; give shorter ones, --check")
        step.detail = f"{sum(map(len, answers.values()))} question(s)"
    gc.collect()
    return answers


def _ask(
    programs: ProgramAnswers,
    signatures: Mapping[str, Signature],
    samples: Mapping[str, Tensors],
    options: ExportOptions,
) -> tuple[RecordedAnswers, list[str]]:
    """The answers, and the signatures whose inputs are too long for these programs."""
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
