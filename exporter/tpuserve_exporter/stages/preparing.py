"""The first stage: every check that can refuse an export before the exporter reads the source."""

from tpuserve_exporter.checks.version_checks import Checks
from tpuserve_exporter.destinations.destination import open_destination
from tpuserve_exporter.options.export_options import ExportOptions, TpuOptions
from tpuserve_exporter.preflight.preflight import Preflight
from tpuserve_exporter.programs.lowering import check_lowering
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.serve_check.server_process import find_server
from tpuserve_exporter.signatures.labels import read_labels
from tpuserve_exporter.stages.job import Job, Warnings
from tpuserve_exporter.version.signing import read_key
from tpuserve_exporter.version.tflite_writer import check_litert


def prepare(options: ExportOptions, progress: Progress) -> Job:
    """Check the libraries, files and version number that `options` need.

    Raises MissingExtra for a missing library, and PublishFailed for a number that another version has. Raises
    OptionConflict for bad --labels, for a bad key, and for a mesh larger than a topology.
    """
    key = None if options.sign is None else read_key(options.sign)
    destination = open_destination(options.out_base)
    labels = read_labels(options.labels)
    destination.check(options.version)
    if "tflite" in options.also:
        check_litert()
    if options.device_programs:
        check_lowering()
    preflight = _prepare_preflight(options.tpu, progress)
    if options.serve_check:
        find_server()
    warnings = Warnings(progress)
    checks = Checks(options, progress, warnings.add)
    return Job(options, progress, warnings, destination, labels, checks, preflight, key)


def _prepare_preflight(tpu: TpuOptions, progress: Progress) -> Preflight | None:
    return Preflight(tpu.topologies, tpu.mesh, tpu.rules, progress) if tpu.topologies else None
