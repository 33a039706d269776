"""Version directories that consist of a manifest with a preflight, for tests of deployments."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tpuserve_exporter.options.tpu import FAMILIES

GIB = 2**30


def preflight_rows(
    topology: str = "v5e:1x1",
    *,
    mesh: Mapping[str, int] | None = None,
    batch_sizes: Iterable[int] = (1, 8),
    compile_s: float = 1.5,
    needed_bytes: int = GIB,
) -> dict[str, list[dict[str, Any]]]:
    """Return `preflight` and `preflight_together` of one topology. `needed_bytes` is for all programs together."""
    available = FAMILIES[topology.partition(":")[0]].hbm_bytes
    place = {"topology": topology, "mesh": dict(mesh or {"data": 1, "model": 1})}
    program = {"part": "device", **place, "sequence_length": None, "compile_s": compile_s}
    verdict = {"verdict": "compiles and fits", "reason": "compiles and fits"}
    together = "fits" if needed_bytes <= available else "does not fit"
    return {
        "preflight": [{**program, "batch_size": size, **verdict} for size in batch_sizes],
        "preflight_together": [
            {
                **place,
                "verdict": together,
                "hbm_bytes": {"needed": needed_bytes, "available": available},
                "side_by_side": available // needed_bytes,
            }
        ],
    }


def write_checked(
    version: Path,
    rows: Mapping[str, Any] | None = None,
    *,
    batch_sizes: Iterable[int] = (1, 8),
    fingerprint: str | None = "5eed",
    weights_bytes: int = 100,
    other_bytes: int = 900,
    unlowered: Iterable[str] = (),
) -> Path:
    """Write the manifest of a version with one device part. `unlowered` are signatures without a program."""
    programs = [{"batch_size": size, "sequence_length": None, "file": f"b{size}"} for size in batch_sizes]
    manifest = {
        **({} if fingerprint is None else {"fingerprint": fingerprint}),
        "signatures": {name: {} for name in ("serving_default", *unlowered)},
        "device": {
            "weights": "weights.safetensors",
            "parts": {"device": {"programs": programs}},
            "signatures": {"serving_default": {}},
            **(preflight_rows() if rows is None else rows),
        },
        "files": {
            "weights.safetensors": {"sha256": "", "size_bytes": weights_bytes},
            "saved_model.pb": {"sha256": "", "size_bytes": other_bytes},
        },
    }
    file = version / "assets.extra/tpuserve/manifest.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(manifest))
    return version
