"""Decides whether a version may have a response cache: only if equal requests always get equal outputs."""

from collections.abc import Collection

from tpuserve_server.core.servable import Servable
from tpuserve_server.versions.manifest import Manifest


def why_not_cached(servable: Servable, manifest: Manifest | None, batched: Collection[str]) -> str:
    """Return why the server must not cache the version's responses, as a clause, or "" if it may.

    The rule is for the whole version: one signature may change the state that another one reads. `batched` names the
    signatures whose requests share batches.
    """
    entries = manifest.signatures if manifest is not None else {}
    for name, entry in entries.items():
        if not entry.deterministic:
            return f"the manifest states that signature '{name}' is not deterministic"
        if name in batched and not entry.rows_independent:
            return f"rows of other requests may change the outputs of signature '{name}', by the manifest"
    return servable.unrepeatable
