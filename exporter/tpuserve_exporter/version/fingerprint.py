"""The fingerprint of a version. Versions with equal fingerprints compute the same and are served the same way."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.variables.object_graph import OBJECT_GRAPH_KEY
from tpuserve_exporter.terms.signature import Array
from tpuserve_exporter.version.graph_hash import hash_graph
from tpuserve_exporter.version.published_version import PublishedVersion
from tpuserve_exporter.version.warmup import WARMUP_FILE, hash_requests
from tpuserve_formats.manifest.device import ManifestDevice
from tpuserve_formats.manifest.version import Manifest, ManifestFile, ManifestSignature

# Files whose bytes differ between exports of one model. The fingerprint covers their meaning instead.
_OTHER_EACH_TIME = (
    "saved_model.pb", "saved_model.pbtxt", "fingerprint.pb", "variables/",
    "assets.extra/tpuserve/programs/", "assets.extra/tpuserve/host/", WARMUP_FILE.as_posix(),
)  # fmt: skip

# The sizes of the samples depend on the data of the checks, and do not change how the server serves the version.
_OF_THE_CHECKS = {"inputs": {"__all__": {"tried_sizes"}}}
# Fields of `device` with results about programs. They contain times, which differ between exports.
_FOR_PEOPLE = {"preflight", "preflight_together", "numerics"}


def make_fingerprint(
    version: Path,
    signatures: Mapping[str, ManifestSignature],
    compute_dtype: str,
    files: Mapping[str, ManifestFile],
    device: ManifestDevice | None,
) -> str:
    """Hash the version's computation, weights, assets, warm-up requests, and batching configuration.

    The fingerprint excludes the source, the time of the export, and the results of the checks.
    """
    described = {
        "graph": hash_graph(version),
        "signatures": {name: one.model_dump(mode="json", exclude=_OF_THE_CHECKS) for name, one in signatures.items()},
        "compute_dtype": compute_dtype,
        "variables": dict(_hash_variables(version)),
        **({} if device is None else {"device": device.model_dump(mode="json", exclude=_FOR_PEOPLE)}),
        "warmup": hash_requests(version),
        "files": {name: file.sha256 for name, file in files.items() if not name.startswith(_OTHER_EACH_TIME)},
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _hash_variables(version: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of each variable, with one value in memory at a time."""
    import tensorflow as tf

    prefix = find_variables(version)
    if prefix is None:
        return
    reader = tf.train.load_checkpoint(str(prefix))
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        if name != OBJECT_GRAPH_KEY:
            value = np.asarray(reader.get_tensor(name))
            yield name, f"{value.dtype}{shape} {hashlib.sha256(_content(value)).hexdigest()}"


def _content(value: Array) -> bytes | memoryview:
    """Return the value's bytes. Numbers become uint8 first, because Python's buffers do not support bfloat16."""
    if value.dtype == object:
        return repr(value.tolist()).encode()
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def holds(published: PublishedVersion, manifest: Manifest) -> bool:
    """Return whether a published version has the fingerprint in `manifest`, and the file sizes in its own manifest."""
    if manifest.fingerprint is None or published.manifest is None:
        return False
    try:
        theirs = json.loads(published.manifest)
        sizes = {name: file["size_bytes"] for name, file in theirs["files"].items()}
        same = theirs.get("fingerprint") == manifest.fingerprint
    except (ValueError, TypeError, KeyError, AttributeError):  # not a manifest of the exporter
        return False
    return same and all(published.sizes.get(name) == size for name, size in sizes.items())
