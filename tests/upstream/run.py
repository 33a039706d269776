"""Run TensorFlow Serving's own end-to-end tests, unmodified, against our `tensorflow_model_server`.

    make upstream CHECKOUT=DIR

DIR is a clone of github.com/tensorflow/serving. The tests expect the server and their models at Bazel's paths, which a
directory of links provides. They listen on a fixed UNIX socket, so a machine can run them only once at a time.
"""

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.upstream import unmodified
from tests.upstream.outcomes import Outcomes, counted, read_outcomes, table

ROOT = Path(__file__).parents[2]
TEST_FILE = "tensorflow_serving/model_servers/tensorflow_model_server_test.py"
# Each of about twenty servers takes a minute if it does not answer.
TIMEOUT_S = 3600.0


def main() -> int:
    """Print the table of outcomes. Return 0 if every counted test has passed."""
    options = _options()
    outcomes = run_tests(options.checkout, options.tests)
    print(table(outcomes))
    return 0 if set(counted(outcomes).values()) == {"passed"} else 1


def run_tests(checkout: Path, tests: Iterable[str] = ()) -> Outcomes:
    """Run the tests, or those named, and return their outcomes by name. Takes minutes.

    The output of tests and servers goes to standard error.
    """
    with tempfile.TemporaryDirectory(prefix="tpuserve-upstream-") as name:
        folder = Path(name)
        report = folder / "report.xml"
        command = [
            *(sys.executable, unmodified.__file__, str(checkout), str(checkout / TEST_FILE)),
            *(f"TensorflowModelServerTest.{test}" for test in tests),
            f"--xml_output_file={report}",
        ]
        environment = _environment(checkout, folder)
        subprocess.run(command, env=environment, stdout=sys.stderr, check=False, timeout=TIMEOUT_S)
        return read_outcomes(report) if report.exists() else {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=_checkout, required=True, help="Clone of github.com/tensorflow/serving.")
    parser.add_argument(
        "tests", nargs="*", metavar="TEST", help="Name of a test, such as testPredictUDS (default: all)."
    )
    options = parser.parse_args()
    if importlib.util.find_spec("portpicker") is None:
        parser.error("The tests need portpicker. Run `make upstream CHECKOUT=DIR`, which installs it.")
    return options


def _checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not text or not (path / TEST_FILE).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} does not contain {TEST_FILE}. Clone github.com/tensorflow/serving.")
    return path


def _environment(checkout: Path, folder: Path) -> Mapping[str, str]:
    sources = folder / "tf_serving" / "tensorflow_serving"
    (sources / "model_servers").mkdir(parents=True)
    (sources / "servables").symlink_to(checkout / "tensorflow_serving" / "servables")
    _write_server(sources / "model_servers" / "tensorflow_model_server")
    temporary = folder / "tmp"
    temporary.mkdir()
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "TEST_SRCDIR": str(folder),
        "TEST_TMPDIR": str(temporary),
        "PYTHONPATH": python_path,
        # The tests use Keras 2's name for a Keras model's input.
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _write_server(path: Path) -> None:
    """Write a script for the command. `exec` is needed because the tests stop it with SIGKILL.

    The tests send shapes outside of their models' signatures, which the server refuses by default.
    """
    program = Path(sys.executable).with_name("tensorflow_model_server")
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(str(program))} --lenient_shapes "$@"\n')
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
