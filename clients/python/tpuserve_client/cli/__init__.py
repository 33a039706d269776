"""The commands `tpuserve predict`, `tpuserve status` and `tpuserve protos`.

Exit codes:

- 0: success.
- 1: the server refused the request, is unreachable or is not ready, or a file is broken.
- 2: wrong usage, including a missing file.
"""

import io
import sys

import click

from tpuserve_client.cli.predict import predict
from tpuserve_client.cli.protos import protos
from tpuserve_client.cli.status import status

__all__ = ["predict", "predict_main", "protos", "protos_main", "status", "status_main"]


def predict_main() -> None:
    """Run the `tpuserve-predict` program, which users start as `tpuserve predict`."""
    _run(predict)


def status_main() -> None:
    """Run the `tpuserve-status` program, which users start as `tpuserve status`."""
    _run(status)


def protos_main() -> None:
    """Run the `tpuserve-protos` program, which users start as `tpuserve protos`."""
    _run(protos)


def _run(command: click.Command) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The locale's encoding may lack characters of a model's strings, and the "…" of cut tables.
        sys.stdout.reconfigure(errors="backslashreplace")
    command(prog_name=f"tpuserve {command.name}")
