"""The `tpuserve` command: it starts a subcommand at once, and imports click for everything else."""

import sys

from tpuserve_command.subcommands import SUBCOMMANDS


def main() -> None:
    """Run the `tpuserve` command."""
    _, *arguments = sys.argv
    if arguments and arguments[0] in SUBCOMMANDS:
        SUBCOMMANDS[arguments[0]].run(arguments[1:])
    # Help, completion, and mistakes.
    from tpuserve_command.group import tpuserve

    tpuserve(prog_name="tpuserve")
