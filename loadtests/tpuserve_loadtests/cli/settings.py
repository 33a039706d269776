"""What was asked for, in words, for a report that is read far from where it was made."""

import os
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuserve_loadtests.traffic.engine import Target


def describe_settings(*targets: "Target") -> dict[str, str]:
    """By name; of one target or several, and the command that this process was started with."""
    lines = [line for target in targets for line in target.workload.lines]
    rows = sorted({count for line in lines for count in line.rows})
    rows_told = f"{rows[0]} to {rows[-1]} rows" if len(rows) > 1 else f"{rows[0]} row{'' if rows[0] == 1 else 's'}"
    return {
        "Model": _joined(str(line.spec) for line in lines),
        "Signature": _joined(line.signature_name for line in lines),
        "Addresses": _joined(address for target in targets for address in target.addresses.values()),
        "Requests": f"{max(len(line.exchanges) for line in lines):,} different ones, of {rows_told}",
        "Timeout": f"{targets[0].timeout_s:g} s",
        "Command": shlex.join(["tpuserve", "loadtest", *sys.argv[1:]]),
        "Generator's machine": f"{os.cpu_count()} cores",
    }


def _joined(texts: Iterable[str]) -> str:
    """Each once."""
    return ", ".join(dict.fromkeys(texts))
