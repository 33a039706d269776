"""Finding: a result of `--check_config`, and its output formats."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from tpuserve_formats.signing.errors import BadKey
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.startup.text_format import ConfigError

Severity: TypeAlias = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `subject` is a flag, a model or a version; `message` is for an operator."""

    severity: Severity
    subject: str
    message: str


def run_check(subject: str, action: Callable[[], str]) -> Finding:
    """Run `action` and return its message, or its error for an operator, as a finding."""
    try:
        return Finding("ok", subject, action())
    except ServingError as error:
        return Finding("error", subject, error.message)
    except (BadKey, ConfigError, HostError, OSError) as error:
        return Finding("error", subject, str(error))


def has_errors(findings: Sequence[Finding]) -> bool:
    """Return whether a server with this configuration would fail to start, or fail to serve a model."""
    return any(finding.severity == "error" for finding in findings)


def format_text(findings: Sequence[Finding]) -> str:
    """Format one line for each finding, and a last line with the counts."""
    lines = [f"{finding.severity:<8} {finding.subject}: {finding.message}" for finding in findings]
    errors, warnings = (sum(finding.severity == kind for finding in findings) for kind in ("error", "warning"))
    return "\n".join([*lines, f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"])


def format_json(findings: Sequence[Finding]) -> str:
    """Format one JSON object: `ok`, and `findings` with `severity`, `subject` and `message`."""
    return json.dumps({"ok": not has_errors(findings), "findings": [asdict(finding) for finding in findings]})


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
