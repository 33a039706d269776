"""Run a file of a TensorFlow Serving checkout like `bazel test`: `unmodified.py CHECKOUT FILE ARGUMENT…`.

The installed `tensorflow_serving` package contains the generated messages, and the checkout contains the tests. This
module joins them in one package. The checkout stays unchanged.
"""

import runpy
import sys
from pathlib import Path

import tensorflow_serving


def main() -> None:
    """Run the file as `__main__`, with the arguments that follow it."""
    checkout, file, *arguments = sys.argv[1:]
    # Append it, because the checkout's `apis` and `config` lack the generated messages of the installed package.
    tensorflow_serving.__path__.append(str(Path(checkout, "tensorflow_serving")))
    sys.argv = [file, *arguments]
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main()
