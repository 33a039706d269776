"""The `tpuserve export SOURCE OUT_BASE` command: reads options, runs one export, reports, and sets the exit code."""

import os
import signal
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click

from tpuserve_exporter.command.options import REPORTING, read_options
from tpuserve_exporter.command.parameter_types import MESH, OUT_BASE, SHARD, TOPOLOGIES, BatchSizes, Version
from tpuserve_exporter.command.running import run_program
from tpuserve_exporter.errors import ExportError
from tpuserve_exporter.options.export_options import (
    ExportOptions,
    SourceKind,
    Weights,
)
from tpuserve_exporter.options.image_scale import IMAGE_SCALES
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.reporting.reporter import Reporter

if TYPE_CHECKING:
    from tpuserve_exporter.stages.exported import Exported

PROG_NAME = "tpuserve export"

_EPILOG = """\b
Examples:
  # a training checkpoint, built by a function of your own
  tpuserve export checkpoints/ models/digits --model examples.digits.model:build
\b
  # a Keras file, checked and warmed with real inputs
  tpuserve export model.keras models/digits --check samples.npz --warmup samples.npz
\b
  # image files in, and two photos that must get their labels
  tpuserve export model.keras models/cats --signature photo=image_bytes --labels labels.txt \\
      --example tabby.jpg=tabby --example siamese.jpg=siamese
\b
  # sentences in, one of them with a known answer
  tpuserve export checkpoints/ models/films --model films:build --signature text=films:serve \\
      --example 'text:a good film=positive'
\b
  # an existing SavedModel, checked and published as version 7
  tpuserve export saved/ models/digits --version 7

\b
Exit codes:
  0  published (or, with --dry-run, all checks passed)
  1  an error nobody foresaw
  2  wrong usage, or the checkpoint does not fit the model
  3  an answer differs from the source's or an --example's, changes between requests, or uses batch statistics
  4  an operation that what was asked for cannot have; with --tpu-strict, a program that does not fit
  5  the version is taken, or the base cannot be written
  6  the source cannot be read
  7  the builder failed
  8  the SavedModel does not load in a session
  9  no inputs that fit to check with, or an --example that no signature takes
  10  the source's framework is not installed
  11  reading the source would run code that came with it
  12  weights that are NaN or infinite
  130  broken off
Whatever fails, nothing is published and nothing is left behind.
"""


def _check_reports(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Check that the reports can be written before the export takes minutes."""
    for path in paths:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise click.BadParameter(f"'{path}' is in no directory that can be written", ctx, param)
    return paths


# An unreadable path is an error of the source, not of usage.
_PATH = click.Path(path_type=Path, readable=False)
_REPORT = click.Path(path_type=Path, dir_okay=False, writable=True)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("source", type=_PATH)
@click.argument("out_base", type=OUT_BASE)
@click.option(
    "--from",
    "kind",
    type=click.Choice(["auto", *get_args(SourceKind)]),
    default="auto",
    show_default=True,
    help="What SOURCE is.",
)
@click.option(
    "--model",
    "builder",
    metavar="PKG.MODULE:FUNCTION",
    help="Function that returns the model (Keras 3, Flax, or what docs/how-to/export says of the source); found from "
    "the working directory too.",
)
@click.option(
    "--model-arg",
    "model_args",
    metavar="K=V",
    multiple=True,
    help="Argument for it; V is read as JSON where it is JSON, else as text. Repeat.",
)
@click.option("--allow-missing", metavar="GLOB", multiple=True, help="Variables the checkpoint may lack. Repeat.")
@click.option("--allow-unused", metavar="GLOB", multiple=True, help="Variables the model may lack. Repeat.")
@click.option(
    "--weights",
    type=click.Choice(get_args(Weights)),
    default="auto",
    show_default=True,
    help="The weights as trained (raw), their moving average (ema), or the average where training kept one (auto).",
)
@click.option(
    "--rename",
    "renames",
    metavar="REGEX=REPL",
    multiple=True,
    help="What to make of the names of stored variables before they are matched, e.g. '^encoder/=backbone/'. Repeat.",
)
@click.option("--allow-nan", is_flag=True, help="Publish weights that are NaN or infinite, with a warning.")
@click.option(
    "--allow-nondeterminism",
    is_flag=True,
    help="Publish a model that answers the same request differently each time, with a warning.",
)
@click.option(
    "--allow-batch-statistics",
    is_flag=True,
    help="Publish a model that averages over the rows of a request by design, with a warning.",
)
@click.option(
    "--unsafe",
    is_flag=True,
    help="Let SOURCE run code that it brings along (Lambda layers, pickles) while it is read. It may do all that you "
    "can: read your files, use your credentials. Only for sources you trust.",
)
@click.option("--signature-name", default="serving_default", show_default=True, help="What to call the signature.")
@click.option(
    "--signature",
    "signatures",
    metavar="NAME=KIND[,OPTION=V...]",
    multiple=True,
    help="A signature to offer: tensor, image_bytes, tf_example, classify, regress, or a function of your own, "
    "pkg.module:function. Repeat. [serving_default=tensor]",
)
@click.option(
    "--image-scale",
    type=click.Choice(list(IMAGE_SCALES)),
    help="Pixel values that signatures of image_bytes feed the model: none (0..255), 0..1, -1..1, or the modes torch "
    "and caffe of keras.applications. [none where the model itself rescales]",
)
@click.option("--labels", type=_FILE, help="Names of the classes, one a line, for classify.")
@click.option(
    "--input",
    "inputs",
    metavar="NAME[:DTYPE[DIM,...]]",
    multiple=True,
    help="Rename the inputs, in order; with dtype and shape, e.g. 'ids:int32[batch,64]', for models that "
    "do not know theirs. Repeat.",
)
@click.option(
    "--input-tensor",
    "input_tensors",
    metavar="TENSOR[=NAME]",
    multiple=True,
    help="Tensor of a .meta graph to feed, and its name in the signature. Repeat.",
)
@click.option(
    "--output-tensor",
    "output_tensors",
    metavar="TENSOR[=NAME]",
    multiple=True,
    help="Tensor of a .meta graph to serve, and its name in the signature. Repeat.",
)
@click.option("--output", "outputs", metavar="NAME", multiple=True, help="Rename the outputs, in order. Repeat.")
@click.option(
    "--batch-sizes",
    type=BatchSizes(),
    default="1,2,4,8,16,32",
    show_default=True,
    help="Sizes that servers pad batches to; each is checked.",
)
@click.option(
    "--sequence-buckets",
    type=BatchSizes(),
    default=(),
    help="Lengths that servers pad inputs of variable length to; checked: padding must not change the rest.",
)
@click.option(
    "--pad-value",
    "pad_values",
    metavar="NAME=V",
    multiple=True,
    help="What pads that input [0, or an empty string]. Repeat.",
)
@click.option(
    "--batching",
    type=click.Choice(["none", "in-graph"]),
    default="none",
    show_default=True,
    help="Batch calls within the graph, to --batch-sizes, for servers that do not batch.",
)
@click.option("--batch-threads", type=click.IntRange(min=1), help="In-graph: batches that run at a time. [2]")
@click.option("--batch-timeout-us", type=click.IntRange(min=0), help="In-graph: how long a row may wait. [1000]")
@click.option("--batch-queue", type=click.IntRange(min=1), help="In-graph: batches that may wait; more fail. [100]")
@click.option(
    "--also",
    type=click.Choice(["tflite"]),
    multiple=True,
    help="Write the model for LiteRT, too: model.tflite, checked as the SavedModel is.",
)
@click.option(
    "--device-programs",
    is_flag=True,
    help="Write programs for a TPU, too, one for each batch size (and length of sequences), each checked on this "
    "machine's CPU. Needs no TPU.",
)
@click.option(
    "--tpu",
    "topologies",
    type=TOPOLOGIES,
    default=(),
    help="TPUs to compile those programs for, without one: do they fit? E.g. v5e:1x1,v6e:2x2, or v5litepod-4.",
)
@click.option("--tpu-strict", is_flag=True, help="With --tpu: publish nothing unless every program compiles and fits.")
@click.option(
    "--tpu-numerics",
    is_flag=True,
    help="Emulate on this CPU what a TPU makes of products, in bfloat16, and tell how far answers move.",
)
@click.option("--mesh", type=MESH, help="With --tpu: devices to spread the version over, e.g. data=2,model=4.")
@click.option(
    "--shard",
    "rules",
    type=SHARD,
    multiple=True,
    help="Weights to cut over the mesh, an axis or - for each dimension, e.g. 'embedding/.*=model,-'. Repeat.",
)
@click.option(
    "--compute-dtype",
    type=click.Choice(["keep", "float32", "bfloat16"]),
    default="keep",
    show_default=True,
    help="What the layers compute in; variables keep their dtype.",
)
@click.option(
    "--int8",
    is_flag=True,
    help="Weights of 8 bits, as Keras quantises Dense, EinsumDense and Embedding; of Keras 3 models.",
)
@click.option(
    "--freeze",
    is_flag=True,
    help="Fold batch norms into the kernels before them, compute what follows from the weights alone, and drop "
    "assertions, prints and summaries.",
)
@click.option(
    "--check",
    type=_FILE,
    help="Inputs to check with, instead of made-up ones: .npz by name, or TFRecord of tf.Example.",
)
@click.option(
    "--example",
    "examples",
    metavar="INPUT=EXPECTED",
    multiple=True,
    help="An input (a file, text:… or json:…) and its expected answer: a label, a class number, or an .npy file of "
    "outputs. A wrong answer ends the export with exit code 3. Repeat.",
)
@click.option(
    "--atol",
    type=click.FloatRange(min=0),
    help="Absolute tolerance [1e-5; in bfloat16 2e-2, in float16 2.5e-3; in int8 or another --compute-dtype 5e-2].",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Relative tolerance [1e-4; in bfloat16 2e-2, in float16 2.5e-3; in int8 or another --compute-dtype 5e-2].",
)
@click.option(
    "--warmup", type=_FILE, help="Inputs for the warm-up requests, instead of the checked ones: .npz or TFRecord."
)
@click.option("--serve-check", is_flag=True, help="Ask a real server, by gRPC and REST, before anything is published.")
@click.option("--version", type=Version(), default="next", show_default=True, help="The number to publish as.")
@click.option("--again", is_flag=True, help="Publish even if the newest version holds exactly this already.")
@click.option(
    "--report",
    "reports",
    metavar="FILE.json|FILE.html",
    type=_REPORT,
    multiple=True,
    callback=_check_reports,
    help="Write the report here too: as JSON, or as a page to look at. Repeat.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
@click.option("--verbose", is_flag=True, help="Show every step, also those of less than a second.")
@click.option("--dry-run", is_flag=True, help="Do everything but publish; OUT_BASE is not touched.")
def command(**arguments: Any) -> int:  # noqa: ANN401 - as click passes them
    """Turn SOURCE into a checked SavedModel and publish it as the next version under OUT_BASE.

    SOURCE is a TF2 or TF1 checkpoint (directory, prefix or .index file), the .meta graph beside one of TF1, a
    .keras or .h5 file, an Orbax checkpoint (directory, step or tree) of a JAX model, a PyTorch file (.pt, .pt2,
    safetensors), or a SavedModel.
    OUT_BASE is what a server watches: a directory, gs://BUCKET/PATH or s3://BUCKET/PATH. Its last part is the
    model's name.
    """
    started = time.monotonic()
    as_json, reports, verbose = (arguments.pop(name) for name in REPORTING)
    reporter = Reporter(arguments["out_base"].name, as_json, reports, verbose=verbose)
    try:
        with reporter.output():
            exported = _run(read_options(arguments), reporter.progress)
    except KeyboardInterrupt:
        return reporter.break_off()
    except ExportError as error:
        return reporter.fail(error)
    except Exception as error:  # the top of the process; a report must exist for any error
        traceback.print_exc()
        return reporter.fail(ExportError(f"{type(error).__name__}: {error}"))
    return reporter.succeed(exported, time.monotonic() - started)


def _run(options: ExportOptions, progress: Progress) -> "Exported":
    """Run the export. Import TensorFlow, which takes seconds, only after every check of the options."""
    from tpuserve_exporter.tensorflow_start import start_tensorflow

    with progress.step("Start TensorFlow"):
        start_tensorflow()
    from tpuserve_exporter.stages.run import run_export

    return run_export(options, progress)


def main() -> NoReturn:
    """Run the `tpuserve-export` program, which users start as `tpuserve export`."""
    signal.signal(signal.SIGTERM, _break_off)
    run_program(command, PROG_NAME)


def _break_off(signum: int, frame: FrameType | None) -> NoReturn:
    """Act on SIGTERM as on Ctrl-C, so that the export cleans up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
