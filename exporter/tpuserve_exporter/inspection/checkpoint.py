"""Reads checkpoints of TensorFlow 2 (an object graph) and of TensorFlow 1 (only names)."""

from pathlib import Path

from tpuserve_exporter.inspection.contents import Contents
from tpuserve_exporter.inspection.variables_files import list_arrays, list_files
from tpuserve_exporter.sources.checkpoint_path import find_prefix
from tpuserve_exporter.sources.variables.object_graph import OBJECT_GRAPH_KEY, open_checkpoint


def inspect_checkpoint(path: Path) -> Contents:
    """Return the contents of a checkpoint, or of the latest one in a directory. Raises SourceUnreadable."""
    prefix = find_prefix(path)
    objects = open_checkpoint(prefix).has_tensor(OBJECT_GRAPH_KEY)
    arrays, problems = list_arrays(prefix)
    others = sorted(one.stem for one in prefix.parent.glob("*.index") if one.stem != prefix.name)
    meta = prefix.with_name(f"{prefix.name}.meta")
    facts = {"others": ", ".join(others)} if others else {}
    if meta.is_file():
        facts["graph"] = f"inspect {meta.name} to see its operations"
    return Contents(
        kind="TF2 checkpoint" if objects else "TF1 checkpoint",
        name=prefix.name,
        facts=facts,
        arrays=arrays,
        files=list_files(prefix),
        problems=problems,
    )
