"""The manifest's path and format version (docs/reference/manifest.md). The submodules with its models need pydantic.

The exporter writes the models, and the server reads them. Pydantic is the extra `manifest`: the exporter and the server
need it anyway, and the client reads no manifest.
"""

from pathlib import Path
from typing import Final

MANIFEST_FILE: Final = Path("assets.extra/tpuserve/manifest.json")
# Signatures of the manifest (`tpuserve_formats.signing`).
SIGNATURE_FILE: Final = MANIFEST_FILE.with_name("manifest.sig.json")
# Signature in the form of OpenSSF Model Signing.
BUNDLE_FILE: Final = Path("model.sig")
# Version of the manifest and of its device programs.
FORMAT_VERSION: Final = 1
