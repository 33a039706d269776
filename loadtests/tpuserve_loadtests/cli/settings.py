"""Settings for reports, as text without secrets."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli.access import HEADER
from tpuserve_loadtests.requests.protocols import shown_address

if TYPE_CHECKING:
    from tpuserve_loadtests.traffic.target import Target


def describe_settings(*targets: "Target") -> dict[str, str]:
    """Return the settings of one or more targets by name, with the command line of this process."""
    lines = [line for target in targets for line in target.workload.lines]
    rows = sorted({count for line in lines for count in line.rows})
    rows_text = f"{rows[0]} to {rows[-1]} rows" if len(rows) > 1 else counted(rows[0], "row")
    headers = dict.fromkeys(name for target in targets for name in target.access.headers)
    return {
        "Model": _joined(str(line.spec) for line in lines),
        "Signature": _joined(line.signature_name for line in lines),
        "Addresses": _joined(shown_address(*place) for target in targets for place in target.addresses.items()),
        "Requests": f"{max(len(line.exchanges) for line in lines):,} distinct, of {rows_text}",
        "Timeout": f"{targets[0].timeout_s:g} s",
        **({"Headers": ", ".join(headers)} if headers else {}),
        **({"API key": "sent"} if any(target.access.api_key is not None for target in targets) else {}),
        **describe_command("tpuserve", "loadtest"),
    }


def describe_command(*program: str) -> dict[str, str]:
    """Return the command line of this process, as `program` and without secrets, and its machine."""
    return {
        "Command": shlex.join([*program, *_redacted(sys.argv[1:])]),
        "Generator machine": counted(os.cpu_count() or 1, "core"),
    }


def _redacted(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments with the header values removed."""
    is_header = False
    for argument in arguments:
        option, equals, text = argument.partition("=")
        if is_header:
            yield _without_value(argument)
        elif option == HEADER and equals:
            yield f"{option}={_without_value(text)}"
        else:
            yield argument
        is_header = argument == HEADER


def _without_value(header: str) -> str:
    """Return a header's name, or the argument itself if it names a file of headers."""
    return header if header.startswith("@") else f"{header.partition(':')[0]}: …"


def _joined(texts: Iterable[str]) -> str:
    """Join the distinct texts."""
    return ", ".join(dict.fromkeys(texts))
