"""The manifest (docs/manifest.md): where it is, and which format. The models, in modules beside, need pydantic.

The exporter writes the models, and the server reads them. Pydantic is the extra `manifest`, because the client reads no
manifest and both others need pydantic anyway.
"""

from pathlib import Path
from typing import Final

MANIFEST_FILE: Final = Path("assets.extra/tpuserve/manifest.json")
# Of the manifest, and of the device programs in it.
FORMAT_VERSION: Final = 1
