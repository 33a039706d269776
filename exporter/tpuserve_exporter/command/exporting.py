"""The `tpuserve export SOURCE OUT_BASE` command: reads options, runs one export, reports, and sets the exit code."""

import os
import signal
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, get_args

import click

from tpuserve_exporter.command.labelled_options import labelled_options
from tpuserve_exporter.command.options import REPORTING, read_options
from tpuserve_exporter.command.parameter_types import MESH, OUT_BASE, SHARD, TOPOLOGIES, BatchSizes, Version
from tpuserve_exporter.command.running import run_program
from tpuserve_exporter.errors import ExportError
from tpuserve_exporter.options.export_options import ExportOptions, SourceKind
from tpuserve_exporter.options.signature_request import IMAGE_SCALES
from tpuserve_exporter.reports.reporter import Reporter
from tpuserve_exporter.reports.shown_progress import RecordedProgress

if TYPE_CHECKING:
    from tpuserve_exporter.stages.job import Exported

# Parameter names by heading, in the order of the help.
SECTIONS: Final = {
    "Source": (
        "kind builder model_args imports tag_set weights weights_decay renames allow_missing allow_unused unsafe "
        "allowed_ops"
    ),
    "Signatures": "signatures signature_name inputs outputs input_tensors output_tensors image_scale labels",
    "Batching": ("batch_sizes sequence_buckets pad_values batching batch_threads batch_timeout_us batch_queue"),
    "Conversion": "compute_dtype int8 freeze also",
    "Device programs": "device_programs topologies tpu_strict tpu_numerics mesh rules",
    "Checks": ("check examples atol rtol warmup serve_check allow_nan allow_nondeterminism allow_batch_statistics"),
    "Metrics": "labelled expectations label_key input_keys ignored_label",
    "Publishing": "version again sign dry_run",
    "Output": "reports as_json verbose",
}


class SectionedCommand(click.Command):
    """A command whose `--help` lists the options under headings. Options in no section come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list for each section."""
        options = {one.name: one for one in self.get_params(ctx) if isinstance(one, click.Option)}
        for heading, names in SECTIONS.items():
            _write(ctx, formatter, heading, [options.pop(name) for name in names.split()])
        _write(ctx, formatter, "Help", list(options.values()))


def _write(ctx: click.Context, formatter: click.HelpFormatter, heading: str, options: Sequence[click.Option]) -> None:
    records = [option.get_help_record(ctx) for option in options]
    with formatter.section(heading):
        formatter.write_dl([record for record in records if record is not None])


PROG_NAME = "tpuserve export"

_EPILOG = """\b
Examples:
  # a training checkpoint, with the function that builds the model
  tpuserve export checkpoints/ models/digits --model examples.digits.model:build
\b
  # a Keras file, with real inputs for the checks and the warm-up
  tpuserve export model.keras models/digits --check samples.npz --warmup samples.npz
\b
  # image files as input, and two photos with their expected labels
  tpuserve export model.keras models/cats --signature photo=image_bytes --labels labels.txt \\
      --example tabby.jpg=tabby --example siamese.jpg=siamese
\b
  # sentences as input, one of them with its expected label
  tpuserve export checkpoints/ models/films --model films:build --signature text=films:serve \\
      --example 'text:a good film=positive'
\b
  # held-out rows with labels: publish only if the model has learned them
  tpuserve export checkpoints/ models/digits --model examples.digits.model:build \\
      --labelled held_out.npz --expect "accuracy>=0.97"
\b
  # a directory of save_pretrained, for sequences of up to 128 tokens
  tpuserve export bert/ models/bert --sequence-buckets 32,128
\b
  # a JAX checkpoint, with the average of an optax.ema in its optimizer state
  tpuserve export checkpoints/ models/scorer --model models:scorer --input 'features:float32[batch,3]' \\
      --weights opt_state/1/ema --weights-decay 0.999
\b
  # a Keras file with classes of yours, which the module digits.layers defines
  tpuserve export model.keras models/digits --import digits.layers
\b
  # the graph of a SavedModel that TPUEstimator saved for TPUs
  tpuserve export saved/ models/scorer --tag-set serve,tpu
\b
  # an existing SavedModel, checked and published as version 7
  tpuserve export saved/ models/digits --version 7

\b
Exit codes:
  0  published (or, with --dry-run, all checks passed)
  1  unexpected error
  2  wrong usage, or the checkpoint does not fit the model
  3  an answer differs from the source's or an --example's, changes between requests, or uses batch statistics
  4  unsupported operation for the requested output; with --tpu-strict, a program that does not fit
  5  the version already exists, or the base is not writable
  6  the source cannot be read
  7  the builder failed
  8  the SavedModel does not load in a session
  9  no fitting inputs for the checks, or an --example that no signature takes
  10  the source's framework is not installed
  11  reading the source would run code from it
  12  weights that are NaN or infinite
  13  the graph reads or writes files, runs Python, or has unknown operations
  14  a metric does not meet its --expect
  130  interrupted
A failed export publishes nothing and removes its temporary files.
"""


def _check_reports(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Check that the reports can be written before the export takes minutes."""
    for path in paths:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise click.BadParameter(f"the directory of '{path}' does not exist or is not writable", ctx, param)
    return paths


# An unreadable path is an error of the source, not of usage.
_PATH = click.Path(path_type=Path, readable=False)
_REPORT = click.Path(path_type=Path, dir_okay=False, writable=True)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(
    cls=SectionedCommand,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.argument("source", type=_PATH)
@click.argument("out_base", type=OUT_BASE)
@click.option(
    "--from",
    "kind",
    type=click.Choice(["auto", *get_args(SourceKind)]),
    default="auto",
    show_default=True,
    help="Kind of SOURCE.",
)
@click.option(
    "--model",
    "builder",
    metavar="PKG.MODULE:FUNCTION",
    help="Function that returns the model (Keras 3, Flax, or another kind that docs/how-to/export lists for the "
    "source). Python also searches the working directory for it.",
)
@click.option(
    "--model-arg",
    "model_args",
    metavar="K=V",
    multiple=True,
    help="Argument of the --model function. V is parsed as JSON if possible, otherwise as text. Repeatable.",
)
@click.option(
    "--import",
    "imports",
    metavar="PKG.MODULE",
    multiple=True,
    help="Import a module with classes and functions of a whole Keras model, before the file is read. Repeatable.",
)
@click.option(
    "--tag-set",
    metavar="TAG,...",
    help="Tags of the graph to export, if a SavedModel has several, e.g. serve,tpu. Default: the graph for servers.",
)
@click.option(
    "--allow-missing", metavar="GLOB", multiple=True, help="Variables that the checkpoint may lack. Repeatable."
)
@click.option("--allow-unused", metavar="GLOB", multiple=True, help="Variables that the model may lack. Repeatable.")
@click.option(
    "--weights",
    metavar="auto|raw|ema|NAME",
    default="auto",
    show_default=True,
    help="Weights to serve: as trained (raw), their moving average (ema), the average if the source has one (auto), or "
    "those in the part NAME of the source, such as opt_state/1/ema.",
)
@click.option(
    "--weights-decay",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="D",
    help="Decay of the average of optax.ema that --weights names, to correct its bias. 0: no correction.",
)
@click.option(
    "--rename",
    "renames",
    metavar="REGEX=REPL",
    multiple=True,
    help="Rename stored variables before they are matched, e.g. '^encoder/=backbone/'. Repeatable.",
)
@click.option("--allow-nan", is_flag=True, help="Publish weights that are NaN or infinite, with a warning.")
@click.option(
    "--allow-nondeterminism",
    is_flag=True,
    help="Publish a model whose answers to the same request differ, with a warning.",
)
@click.option(
    "--allow-batch-statistics",
    is_flag=True,
    help="Publish a model that averages over the rows of a request by design, with a warning.",
)
@click.option(
    "--unsafe",
    is_flag=True,
    help="Allow SOURCE to run the code that it contains (Lambda layers, pickles) while it is read. The code can do "
    "anything that you can: read your files, use your credentials. Use it only for sources that you trust.",
)
@click.option(
    "--allow-op",
    "allowed_ops",
    metavar="OPERATION",
    multiple=True,
    help="Operation that the graph may have although servers refuse it, such as ReadFile. Servers then need it in "
    "--allowed_ops. Repeatable.",
)
@click.option("--signature-name", default="serving_default", show_default=True, help="Name of the signature.")
@click.option(
    "--signature",
    "signatures",
    metavar="NAME=KIND[,OPTION=V...]",
    multiple=True,
    help="Signature to serve: tensor, image_bytes, tf_example, classify, regress, or a function of your own, "
    "pkg.module:function. Repeatable. [serving_default=tensor]",
)
@click.option(
    "--image-scale",
    type=click.Choice(list(IMAGE_SCALES)),
    help="Pixel values that image_bytes signatures feed to the model: none (0..255), 0..1, -1..1, or the modes torch "
    "and caffe of keras.applications. [none if the model rescales its input]",
)
@click.option("--labels", type=_FILE, help="File with class names for classify, one per line.")
@click.option(
    "--input",
    "inputs",
    metavar="NAME[:DTYPE[DIM,...]]",
    multiple=True,
    help="New name of an input, in order, with dtype and shape for models without them, e.g. 'ids:int32[batch,64]'. "
    "Repeatable.",
)
@click.option(
    "--input-tensor",
    "input_tensors",
    metavar="TENSOR[=NAME]",
    multiple=True,
    help="Tensor of a .meta graph to feed, and its name in the signature. Repeatable.",
)
@click.option(
    "--output-tensor",
    "output_tensors",
    metavar="TENSOR[=NAME]",
    multiple=True,
    help="Tensor of a .meta graph to serve, and its name in the signature. Repeatable.",
)
@click.option("--output", "outputs", metavar="NAME", multiple=True, help="New name of an output, in order. Repeatable.")
@click.option(
    "--batch-sizes",
    type=BatchSizes(),
    default="1,2,4,8,16,32",
    show_default=True,
    help="Batch sizes that servers pad to. The export checks each.",
)
@click.option(
    "--sequence-buckets",
    type=BatchSizes(),
    default=(),
    help="Lengths that servers pad inputs of variable length to. The export checks that padding does not change the "
    "answers.",
)
@click.option(
    "--pad-value",
    "pad_values",
    metavar="NAME=V",
    multiple=True,
    help="Padding value of input NAME. Repeatable. [0, or an empty string]",
)
@click.option(
    "--batching",
    type=click.Choice(["none", "in-graph"]),
    default="none",
    show_default=True,
    help="Batch calls inside the graph, to --batch-sizes, for servers that do not batch.",
)
@click.option(
    "--batch-threads",
    type=click.IntRange(min=1),
    help="With --batching in-graph: batches that run at the same time. [2]",
)
@click.option(
    "--batch-timeout-us",
    type=click.IntRange(min=0),
    help="With --batching in-graph: longest wait of a row, in microseconds. [1000]",
)
@click.option(
    "--batch-queue",
    type=click.IntRange(min=1),
    help="With --batching in-graph: pending batches. Further calls fail. [100]",
)
@click.option(
    "--also",
    type=click.Choice(["tflite"]),
    multiple=True,
    help="Also write the model for LiteRT as model.tflite, with the same checks as for the SavedModel.",
)
@click.option(
    "--device-programs",
    is_flag=True,
    help="Also write TPU programs, one for each batch size (and sequence length). Each is checked on this machine's "
    "CPU. Needs no TPU.",
)
@click.option(
    "--tpu",
    "topologies",
    type=TOPOLOGIES,
    default=(),
    help="TPUs to compile the device programs for, to check that they fit. Needs no TPU. E.g. v5e:1x1,v6e:2x2, or "
    "v5litepod-4.",
)
@click.option("--tpu-strict", is_flag=True, help="With --tpu: publish nothing unless every program compiles and fits.")
@click.option(
    "--tpu-numerics",
    is_flag=True,
    help="Emulate a TPU's bfloat16 products on this CPU, and report how much the answers change.",
)
@click.option("--mesh", type=MESH, help="With --tpu: mesh of devices for the version, e.g. data=2,model=4.")
@click.option(
    "--shard",
    "rules",
    type=SHARD,
    multiple=True,
    help="Sharding rule for weights: a mesh axis or - for each dimension, e.g. 'embedding/.*=model,-'. Repeatable.",
)
@click.option(
    "--compute-dtype",
    type=click.Choice(["keep", "float32", "bfloat16"]),
    default="keep",
    show_default=True,
    help="Dtype in which the layers compute. Variables keep their dtype.",
)
@click.option(
    "--int8",
    is_flag=True,
    help="Quantize the weights to 8 bits with Keras (Dense, EinsumDense and Embedding). Keras 3 models only.",
)
@click.option(
    "--freeze",
    is_flag=True,
    help="Fold batch norms into the kernels before them, compute constants from the weights, and drop assertions, "
    "prints and summaries.",
)
@click.option(
    "--check",
    type=_FILE,
    help="Inputs for the checks, instead of made-up ones: .npz by name, TFRecord of tf.Example, or .csv.",
)
@click.option(
    "--example",
    "examples",
    metavar="INPUT=EXPECTED",
    multiple=True,
    help="Input (a file, text:… or json:…) and its expected answer: a label, a class number, or an .npy file of "
    "outputs. A wrong answer ends the export with exit code 3. Repeatable.",
)
@click.option(
    "--atol",
    type=click.FloatRange(min=0),
    help="Absolute tolerance. [1e-5; in bfloat16 2e-2, in float16 2.5e-3; in int8 or another --compute-dtype 5e-2]",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Relative tolerance. [1e-4; in bfloat16 2e-2, in float16 2.5e-3; in int8 or another --compute-dtype 5e-2]",
)
@click.option(
    "--warmup", type=_FILE, help="Inputs of the warm-up requests, instead of the checks' inputs, in such a file."
)
@click.option(
    "--serve-check",
    is_flag=True,
    help="Start a real server before publishing, and compare its answers over gRPC and REST.",
)
@labelled_options
@click.option("--version", type=Version(), default="next", show_default=True, help="Version number to publish.")
@click.option(
    "--sign",
    metavar="KEY_FILE",
    type=_FILE,
    help="Sign the version with this private key, which tpuserve keygen creates, for servers with --require_signed.",
)
@click.option("--again", is_flag=True, help="Publish even if the newest version is identical.")
@click.option(
    "--report",
    "reports",
    metavar="FILE.json|FILE.html",
    type=_REPORT,
    multiple=True,
    callback=_check_reports,
    help="Write the report to this file too, as JSON or as an HTML page. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to standard output, and nothing else.")
@click.option("--verbose", is_flag=True, help="Print every step, including those shorter than a second.")
@click.option("--dry-run", is_flag=True, help="Do everything except publish. OUT_BASE does not change.")
def command(**arguments: Any) -> int:  # noqa: ANN401 - as click passes them
    """Turn SOURCE into a checked SavedModel and publish it as the next version under OUT_BASE.

    SOURCE is a TF2 or TF1 checkpoint (directory, prefix or .index file), a .meta graph with its TF1 checkpoint, a
    .keras or .h5 file, an Orbax, Flax (.msgpack), T5X or .npz checkpoint of a JAX model, a PyTorch file (.pt, .pt2,
    safetensors), a directory of torch.distributed.checkpoint or of save_pretrained of transformers, or a SavedModel.
    OUT_BASE is the base path that a server watches: a directory, gs://BUCKET/PATH or s3://BUCKET/PATH. Its last
    part is the model's name.
    """
    started = time.monotonic()
    as_json, reports, verbose = (arguments.pop(name) for name in REPORTING)
    reporter = Reporter(arguments["out_base"].name, as_json, reports, verbose=verbose)
    try:
        with reporter.output():
            exported = _run(read_options(arguments), reporter.progress, started)
    except KeyboardInterrupt:
        return reporter.break_off()
    except ExportError as error:
        return reporter.fail(error)
    except Exception as error:  # the top of the process; a report must exist for any error
        traceback.print_exc()
        return reporter.fail(ExportError(f"{type(error).__name__}: {error}"))
    return reporter.succeed(exported, time.monotonic() - started)


def _run(options: ExportOptions, progress: RecordedProgress, started_s: float) -> "Exported":
    """Run the export. Import TensorFlow, which takes seconds, only after every check of the options."""
    from tpuserve_exporter.models.frameworks import start_tensorflow

    with progress.step("Start TensorFlow"):
        start_tensorflow(in_command=True)
    from tpuserve_exporter.reports.summary import VersionReport
    from tpuserve_exporter.stages.run import run_export

    return run_export(options, progress, VersionReport(progress, started_s).write)


def main() -> NoReturn:
    """Run the `tpuserve-export` program, which users start as `tpuserve export`."""
    signal.signal(signal.SIGTERM, _break_off)
    run_program(command, PROG_NAME)


def _break_off(signum: int, frame: FrameType | None) -> NoReturn:
    """Act on SIGTERM as on Ctrl-C, so that the export cleans up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
