"""One export from start to end: its stages in order. Each stage takes the results of earlier stages."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.stages.checking import check_version
from tpuserve_exporter.stages.compiling import compile_programs
from tpuserve_exporter.stages.describing import describe_version
from tpuserve_exporter.stages.exported import Exported
from tpuserve_exporter.stages.freezing import freeze_model
from tpuserve_exporter.stages.opening import open_model
from tpuserve_exporter.stages.preparing import prepare
from tpuserve_exporter.stages.publishing import publish_version
from tpuserve_exporter.stages.recording import record_answers
from tpuserve_exporter.stages.screening import screen_version
from tpuserve_exporter.stages.serving import choose_requests, serve_version
from tpuserve_exporter.stages.staging import staging_folder
from tpuserve_exporter.stages.warming import warm_version
from tpuserve_exporter.stages.writing import write_version


def run_export(
    options: ExportOptions,
    progress: Progress,
    attach_report: Callable[[Exported, Path], None],
    live: object | None = None,
) -> Exported:
    """Export a version, and publish it unless this is a dry run. Blocks. The caller has started TensorFlow.

    `attach_report` writes the report of a checked version into its directory, before publication. A `live` model
    replaces the source in the options. Raises ExportError, and then publishes nothing and leaves no files.
    `tensorflow_start` starts TensorFlow.
    """
    job = prepare(options, progress)
    # No variable here refers to the source's own model, so that Python frees it when the frozen model exists.
    frozen = freeze_model(job, open_model(job, live))
    with staging_folder(job, frozen) as folder:
        written = screen_version(job, write_version(job, frozen, folder))
        compiled = compile_programs(job, written)
        recorded = record_answers(job, compiled)
        with job.checks.open(folder) as session:
            checked = check_version(job, recorded, session)
            warmed = warm_version(job, checked, session)
            requests = choose_requests(job, checked)
        described = describe_version(job, warmed)
        served = serve_version(job, described, requests)
        exported = Exported(
            name=job.destination.model_name,
            version=None,
            path=None,
            manifest=described.manifest,
            signatures=checked.signatures,
            restore=written.source.restore,
            warmup_records=warmed.records,
            warnings=job.warnings.messages,
            serve_check=served.answers,
            variables=described.variables,
            preflight=compiled.preflight,
            samples=checked.samples,
            preprocessing=written.preprocessing,
            examples=len(options.examples),
        )
        attach_report(exported, folder)
        published = publish_version(job, served)
    return replace(exported, version=published.version, path=published.path, published=published.new)
