"""Links to the base and the components in the exporter's package, whose wheel then contains the files.

`tpuserve deploy render` writes them beside its overlays. `python -m deploy.kubernetes.packaged` makes the links again
after files were added or removed. Links of directories do not work: uv_build cannot read them.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
PACKAGED: Final = _HERE.parents[1] / "exporter/tpuserve_exporter/deployment/manifests"
# It needs the dashboard and the rules of deploy/observability, too.
_OMITTED: Final = "components/prometheus-operator"


def packaged_files() -> Iterator[Path]:
    """Yield the files of the base and of the components, relative to this directory."""
    for folder in ("base", "components"):
        for path in sorted((_HERE / folder).rglob("*.yaml")):
            relative = path.relative_to(_HERE)
            if not relative.is_relative_to(_OMITTED):
                yield relative


if __name__ == "__main__":
    shutil.rmtree(PACKAGED, ignore_errors=True)
    for name in packaged_files():
        link = PACKAGED / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(_HERE / name, link.parent))
