"""Run Triton's own Python examples, unmodified, against our server.

    make oip-clients
    .venv/bin/python -m tests.triton_examples --checkout DIR

DIR is a clone of github.com/triton-inference-server/client. The examples run in .oip-clients. Prints a table of the
results, and the output of each example that failed. Exits with status 1 if one failed.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at import.

from PIL import Image

from tests.e2e.running_server import run_configured_server
from tests.support.optional import find_oip_clients
from tests.triton_examples.catalogue import EXAMPLES, IMAGE, Example
from tests.triton_examples.models import save_models
from tests.triton_examples.outcomes import EXAMPLES_FOLDER, Outcome, failed, run_example, table


def main(arguments: Sequence[str]) -> int:
    """Print the table. Return 0 if every example had the expected result."""
    options = _options(arguments)
    outcomes = run_examples(options.checkout, options.examples)
    print(table(outcomes))
    wrong = failed(outcomes)
    for outcome in wrong:
        print(f"\n{outcome.example.title}:\n{outcome.output.strip()}")
    return 1 if wrong else 0


def run_examples(checkout: Path, files: Sequence[str] = ()) -> list[Outcome]:
    """Run the examples, or those of the named files. Takes a minute.

    Each example that counts the models has a server of its own.
    """
    python = find_oip_clients()
    assert python is not None, "make oip-clients"
    selected = [example for example in EXAMPLES if not files or example.file in files]
    outcomes: dict[Example, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="tpuserve-triton-") as name:
        folder = Path(name)
        Image.new("RGB", (10, 10), "red").save(folder / IMAGE)
        models = save_models(folder / "models")
        for count in sorted({example.models for example in selected}):
            # The examples use `simple`, which is the first.
            served = dict(list(models.items())[: count or None])
            with _serving(served, folder) as addresses:
                for example in selected:
                    if example.models == count:
                        outcomes[example] = run_example(example, python, checkout, addresses, folder)
    return [outcomes[example] for example in selected]


@contextmanager
def _serving(models: dict[str, Path], folder: Path) -> Iterator[dict[str, str]]:
    """Run a server until the block ends, and yield its addresses by protocol."""
    config = folder / "models.config"
    entries = "".join(
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}\n'
        for name, path in models.items()
    )
    config.write_text(f"model_config_list {{ {entries} }}")
    # The examples register keys such as /input_simple and /output0_simple.
    flags = (f"--model_config_file={config}", "--shared_memory_prefix=input,output", "--oip_server_name=triton")
    with run_configured_server(folder / "log", *flags, model="simple") as server:
        yield {"grpc": server.grpc, "http": server.rest.removeprefix("http://")}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--checkout", type=_checkout, required=True, help="Clone of github.com/triton-inference-server/client."
    )
    parser.add_argument(
        "examples",
        nargs="*",
        metavar="FILE",
        help="File of an example, such as simple_http_infer_client.py (default: all).",
    )
    options = parser.parse_args(arguments)
    if find_oip_clients() is None:
        parser.error("The examples need tritonclient. Run `make oip-clients`.")
    return options


def _checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not text or not (path / EXAMPLES_FOLDER).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} does not contain {EXAMPLES_FOLDER}. Clone github.com/triton-inference-server/client."
        )
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
