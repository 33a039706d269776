"""Lists the contents of a checkpoint of torch.distributed.checkpoint, without torch and without running its pickles."""

from pathlib import Path

from tpuserve_exporter.inspection.contents import Contents, StoredArray
from tpuserve_exporter.sources.part_roles import role_of
from tpuserve_exporter.sources.torch.distributed_metadata import METADATA, SUFFIX, StoredValue, read_metadata


def inspect_distributed(folder: Path) -> Contents:
    """Return the contents of a directory with `.metadata`. Raises SourceUnreadable."""
    stored = read_metadata(folder)
    files = {path.name: path.stat().st_size for path in [folder / METADATA, *sorted(folder.glob(f"*{SUFFIX}"))]}
    ends: dict[str, int] = {}
    for part in (part for one in stored.values() for part in one.parts):
        ends[part.file] = max(ends.get(part.file, 0), part.start + part.length)
    problems = [f"{name} is missing; {METADATA} lists it" for name in sorted(ends.keys() - files.keys())]
    problems += [
        f"{name} is truncated: it has {files[name]:,} of {end:,} bytes"
        for name, end in sorted(ends.items())
        if name in files and files[name] < end
    ]
    objects = sum(one.shape is None for one in stored.values())
    return Contents(
        kind="PyTorch distributed checkpoint",
        name=folder.name,
        facts={"objects": f"{objects} besides tensors, which inspect does not read"} if objects else {},
        arrays=tuple(_array(one) for one in stored.values() if one.shape is not None),
        files=files,
        problems=tuple(problems),
    )


def _array(stored: StoredValue) -> StoredArray:
    keys = tuple(map(str, stored.keys))
    return StoredArray("/".join(keys), stored.dtype, stored.shape, role_of(keys[:-1]))
