"""The committed messages are those of serving.proto."""

from pathlib import Path

from tpuserve_client._proto import generate


def test_generated_module_is_what_its_source_makes(tmp_path: Path) -> None:
    assert generate.MODULE.read_text() == generate.module_text(generate.compiled(tmp_path))


def test_generated_module_carries_no_guard_against_other_protobuf_releases() -> None:
    assert "runtime_version" not in generate.MODULE.read_text()
