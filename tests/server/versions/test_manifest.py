import json
import os
from pathlib import Path

import pytest

from tests.support.saved_models import write_manifest
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_server.core.terms.errors import DeadlineExceeded, FailedPrecondition
from tpuserve_server.core.terms.types import Precision
from tpuserve_server.versions.manifest import Manifest, missing_file


@pytest.fixture
def version(tmp_path: Path) -> Path:
    path = tmp_path / "1"
    (path / "variables").mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"graph")
    (path / "variables" / "data").write_bytes(b"weights")
    write_manifest(path, later_field={"ignored": True})
    return path


def read(path: Path) -> Manifest:
    manifest = Manifest.read(path)
    assert manifest is not None
    return manifest


def test_a_whole_version_is_whole(version: Path) -> None:
    assert missing_file(version) == ""
    manifest = read(version)
    manifest.verify_files(version)
    assert manifest.signatures["serving_default"].batch_sizes == (1, 2, 4)
    assert not manifest.cpu.allow_bfloat16_kernels


def test_precision_is_the_dtype_and_the_tolerance_of_the_parity_check(version: Path) -> None:
    assert read(version).precision is None
    write_manifest(version, compute_dtype="mixed_bfloat16", parity={"atol": 0.02, "rtol": 0.01, "rows": 32})
    assert read(version).precision == Precision("mixed_bfloat16", 0.02, 0.01)
    # An export with --atol inf writes None.
    write_manifest(version, compute_dtype="float32", parity={"atol": None, "rtol": 0.01})
    assert read(version).precision is None


def test_metrics_of_the_export_are_read_without_fields_of_later_exporters(version: Path) -> None:
    assert read(version).metrics is None
    metric = {"metric": "accuracy", "signature": "s", "output": "y", "labels": "label", "value": 0.5, "operator": ">=",
              "bound": 0.25, "met": True}  # fmt: skip
    evaluation = {"file": "a.npz", "sha256": "ab", "rows": 9, "metrics": [metric]}
    write_manifest(version, evaluation={**evaluation, "metrics": [{**metric, "later": 1}]})
    assert read(version).metrics == evaluation


def test_a_version_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert Manifest.read(tmp_path) is None
    assert missing_file(tmp_path) is None


def test_a_missing_or_short_file_is_seen_at_once(version: Path) -> None:
    (version / "variables" / "data").write_bytes(b"wei")
    assert missing_file(version)
    with pytest.raises(FailedPrecondition, match="variables/data has 3 bytes; the manifest has 7"):
        read(version).verify_files(version)
    (version / "variables" / "data").unlink()
    with pytest.raises(FailedPrecondition, match="variables/data is missing"):
        read(version).verify_files(version)


def test_a_changed_file_of_the_same_size_is_seen_when_loading(version: Path) -> None:
    (version / "variables" / "data").write_bytes(b"weighty")
    assert missing_file(version) == ""
    with pytest.raises(FailedPrecondition, match="variables/data is corrupt: its sha256 is"):
        read(version).verify_files(version)


def test_a_file_that_takes_too_long_to_hash_is_given_up(version: Path) -> None:
    os.truncate(version / "variables" / "data", 2**43)
    manifest = json.loads((version / MANIFEST_FILE).read_text())
    manifest["files"]["variables/data"]["size_bytes"] = 2**43
    (version / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(DeadlineExceeded, match=r"The hash of \S+ takes too long"):
        read(version).verify_files(version, lambda: True)


@pytest.mark.parametrize("text", ["{", "[]", '{"format_version": "x"}', '{"format_version": 1, "files": {"a": {}}}'])
def test_what_is_no_manifest_is_refused(version: Path, text: str) -> None:
    (version / MANIFEST_FILE).write_text(text)
    assert missing_file(version)
    with pytest.raises(FailedPrecondition, match="is not a valid manifest"):
        Manifest.read(version)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_names_that_no_file_can_have_are_refused(version: Path, name: str) -> None:
    document = json.loads((version / MANIFEST_FILE).read_text())
    document["files"][name] = {"sha256": "", "size_bytes": 6}
    (version / MANIFEST_FILE).write_text(json.dumps(document))
    assert missing_file(version)
    with pytest.raises(FailedPrecondition, match="cannot be checked"):
        read(version).verify_files(version)


def test_a_manifest_that_is_no_file_is_refused(version: Path) -> None:
    (version / MANIFEST_FILE).unlink()
    (version / MANIFEST_FILE).mkdir()
    assert missing_file(version)
    with pytest.raises(FailedPrecondition, match="cannot be read: Is a directory"):
        Manifest.read(version)


def test_a_manifest_that_is_a_named_pipe_keeps_nobody_waiting(version: Path) -> None:
    (version / MANIFEST_FILE).unlink()
    os.mkfifo(version / MANIFEST_FILE)
    assert missing_file(version)
    with pytest.raises(FailedPrecondition, match="is a named pipe"):
        Manifest.read(version)


def test_a_manifest_of_any_size_is_not_read(version: Path) -> None:
    os.truncate(version / MANIFEST_FILE, 16 * 2**20 + 1)
    with pytest.raises(FailedPrecondition, match="has more than 16 MiB"):
        Manifest.read(version)


def test_a_later_format_says_what_to_do(version: Path) -> None:
    (version / MANIFEST_FILE).write_text(json.dumps({"format_version": 2}))
    with pytest.raises(FailedPrecondition, match="format_version 2; this server supports up to 1"):
        Manifest.read(version)


def test_links_in_a_circle_are_missing_files(version: Path) -> None:
    (version / "variables" / "data").unlink()
    (version / "variables" / "data").symlink_to("data")
    assert missing_file(version) == "variables/data is missing; the manifest lists it"


def test_a_manifest_cannot_point_outside_its_version(version: Path) -> None:
    (version.parent / "secret").write_bytes(b"secret")
    document = json.loads((version / MANIFEST_FILE).read_text())
    document["files"]["../secret"] = {"sha256": "", "size_bytes": 6}
    (version / MANIFEST_FILE).write_text(json.dumps(document))
    with pytest.raises(FailedPrecondition, match="is outside the version directory"):
        read(version).verify_files(version)
