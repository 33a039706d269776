"""Subcommands of `tpuserve`: programs named `tpuserve-NAME` in the directory of this Python, or on PATH.

Imports little, because each subcommand waits for it.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

EXIT_NOT_INSTALLED = 127  # the shell's exit code for "command not found"


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand, the distribution that provides it, and a one-line summary. Most users need its `extra`."""

    name: str
    distribution: str
    summary: str
    extra: str = ""

    @property
    def program(self) -> str:
        return f"tpuserve-{self.name}"

    @property
    def requirement(self) -> str:
        return f"'{self.distribution}[{self.extra}]'" if self.extra else self.distribution

    def find(self) -> str | None:
        """Return the path of the program, or None. Searches the directory of this Python first, then PATH.

        The virtual environment of this Python need not be active.
        """
        sibling = Path(sys.executable).parent / self.program
        return str(sibling) if os.access(sibling, os.X_OK) else shutil.which(self.program)

    def run(self, arguments: Sequence[str]) -> NoReturn:
        """Run the program with all arguments, including --help, unchanged. Exit with 127 if it is not installed.

        The program replaces this process. It receives the signals, and its exit code is the command's.
        """
        program = self.find()
        if program is None:
            sys.stderr.write(
                f"Error: `tpuserve {self.name}` requires {self.distribution}, which is not installed: "
                f"pip install {self.requirement}\n"
            )
            sys.exit(EXIT_NOT_INSTALLED)
        os.execv(program, [program, *arguments])


SUBCOMMANDS = {
    subcommand.name: subcommand
    for subcommand in (
        Subcommand("export", "tpuserve-exporter", "Turn a checkpoint into a checked, versioned SavedModel."),
        Subcommand("inspect", "tpuserve-exporter", "Print the contents of a checkpoint, a graph or a SavedModel."),
        Subcommand("check", "tpuserve-exporter", "Check without a TPU whether a version compiles for it and fits."),
        Subcommand("sign", "tpuserve-exporter", "Sign a version, for servers that require signatures."),
        Subcommand("keygen", "tpuserve-exporter", "Create a key pair to sign versions with."),
        Subcommand("deploy", "tpuserve-exporter", "Write Kubernetes manifests for a version on a TPU."),
        Subcommand("serve", "tpuserve-server", "Serve models over gRPC and REST.", "tensorflow"),
        Subcommand("health", "tpuserve-server", "Ask the server on this machine whether it is ready."),
        Subcommand("key", "tpuserve-server", "Make an API key of a client."),
        Subcommand("predict", "tpuserve-client", "Send one input to a model and print the outputs."),
        Subcommand("status", "tpuserve-client", "Show whether the server, or a model, is ready."),
        Subcommand("protos", "tpuserve-client", "Write the .proto files for clients in other languages."),
        Subcommand("loadtest", "tpuserve-loadtests", "Measure a running server under load."),
        Subcommand("rollout", "tpuserve-loadtests", "Make another version live if it is as good as the current one."),
    )
}
