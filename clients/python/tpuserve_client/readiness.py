"""The reason why a model cannot answer predictions, from the states of its versions."""

from collections.abc import Sequence

from tpuserve_client.model import State, VersionStatus


def obstacle(states: Sequence[VersionStatus]) -> str | None:
    """Return why no version can answer predictions, or None if a version can."""
    if any(status.state == State.AVAILABLE for status in states):
        return None
    return "; ".join(map(_describe, states)) or "no version"


def _describe(status: VersionStatus) -> str:
    reason = f" ({status.error})" if status.error else ""
    return f"version {status.version} is {status.state.name}{reason}"
