"""Exports with `tpuserve export`, or with `tpuserve_exporter.export` in a user's script."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.strangers.processes import Processes, last_line
from tests.strangers.saving import HERE, programs
from tests.strangers.stranger import Export, Refusal, Stranger


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export. `error` is empty and `exit_code` is 0 for a published version."""

    exit_code: int
    error: str
    warnings: tuple[str, ...]


def export(stranger: Stranger, one: Export, folder: Path, base_path: Path, processes: Processes) -> Exported:
    """Run the export. Blocks. `BASE_PATH.log` contains its command and output, `BASE_PATH.json` its report."""
    tools = programs(stranger) or HERE
    if one.script:
        command = [str(tools / "python"), "-m", "tests.strangers.script_process", one.script, str(folder)]
        command.append(str(base_path))
    else:
        options = [option.replace("{folder}", str(folder)) for option in one.options]
        command = [str(tools / "tpuserve"), "export", str(folder / one.path), str(base_path), *options, "--json"]
    # A base path may end in `.keras` or `.h5`, which with_suffix would replace. Each needs its own log.
    out, log = (base_path.with_name(f"{base_path.name}.{kind}") for kind in ("json", "log"))
    status = processes.run(command, out, log, {})
    reason = last_line(log)
    log.write_text(f"$ {' '.join(command)}\n{log.read_text(errors='replace')}")
    try:
        report = json.loads(out.read_text(errors="replace"))
    except ValueError:
        return Exported(status or 1, f"the export printed no report: {reason} (see {log})", ())
    if report["ok"]:
        return Exported(status, "", tuple(report["warnings"]))
    return Exported(status or 1, str(report["error"]), ())


def find_fault(exported: Exported, one: Export) -> str:
    """Describe the difference from the expected result. Return "" without one."""
    if one.refusal is not None and (exported.exit_code or one.refusal.required):
        return _compare(exported, one.refusal)
    if exported.exit_code:
        return f"the export exited with code {exported.exit_code}: {exported.error}"
    if one.warning and not any(one.warning in warning for warning in exported.warnings):
        return f"the export printed no warning that contains {one.warning!r}"
    return ""


def _compare(exported: Exported, refusal: Refusal) -> str:
    expected = f"expected exit code {refusal.exit_code} and {refusal.phrase!r}"
    if not exported.exit_code:
        return f"the export published a version, {expected}"
    if exported.exit_code != refusal.exit_code or refusal.phrase not in exported.error:
        return f"the export exited with code {exported.exit_code}: {exported.error} ({expected})"
    return ""
