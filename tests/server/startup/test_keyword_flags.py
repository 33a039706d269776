"""Tests that Python keywords become command-line flags, and that errors name mistakes before the start."""

import os
from pathlib import Path

import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from tpuserve_server.core.batching.parameters import BatchingMode
from tpuserve_server.startup.start import StartFailed, check_base_paths, check_keywords, flag_arguments, model_config


def test_values_are_written_as_on_the_command_line() -> None:
    settings = {
        "max_batch_size": 8,
        "enable_batching": True,
        "enable_profiler": False,
        "allowed_batch_sizes": (1, 4, 8),
        "model_config_file": Path("/etc/models.config"),
        "batching_mode": BatchingMode.GREEDY,
        "mesh": {"data": 2, "model": 4},
        "grpc_channel_arguments": {"grpc.max_connection_age_ms": 2000},
        "drain_delay_seconds": 0.5,
        "device": "cpu",
        "monitoring_config_file": None,
    }
    assert flag_arguments(settings) == [
        "--max_batch_size=8",
        "--enable_batching=true",
        "--enable_profiler=false",
        "--allowed_batch_sizes=1,4,8",
        "--model_config_file=/etc/models.config",
        "--batching_mode=greedy",
        "--mesh=data=2,model=4",
        "--grpc_channel_arguments=grpc.max_connection_age_ms=2000",
        "--drain_delay_seconds=0.5",
        "--device=cpu",
    ]


def test_an_unknown_setting_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"start\(\) has no setting 'max_batchsize'; did you mean 'max_batch_size'\?"):
        check_keywords({"m": "m"}, {"max_batchsize": 8})
    with pytest.raises(TypeError, match="no setting 'zzz'; tpuserve serve --help lists the flags"):
        check_keywords({"m": "m"}, {"zzz": 8})


def test_models_that_are_no_mapping_or_named_twice_are_refused() -> None:
    with pytest.raises(TypeError, match="models maps names to base paths"):
        check_keywords("models/digits", {})  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ValueError, match="models is empty"):
        check_keywords({}, {})
    with pytest.raises(ValueError, match="models and model_base_path both configure models"):
        check_keywords({"m": "m"}, {"model_base_path": "m"})


def test_any_name_and_path_survive_the_configuration_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    models: dict[str, str | Path] = {
        'a "quoted" näme': Path("folder with ' and \\ and ü"),
        "stored": "gs://bucket/models/m",
    }
    parsed = text_format.Parse(model_config(models), ModelServerConfig())
    assert {config.name: config.base_path for config in parsed.model_config_list.config} == {
        'a "quoted" näme': str(tmp_path / "folder with ' and \\ and ü"),
        "stored": "gs://bucket/models/m",
    }


def test_a_base_path_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StartFailed, match=r"^Cannot serve m: its base path \S+ cannot be read: Permission denied\.$"):
        check_base_paths({"m": tmp_path})


def test_a_base_path_without_a_version_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(
        StartFailed, match=r"^Cannot serve m: its base path \S+/none does not exist or is not a directory\.$"
    ):
        check_base_paths({"m": tmp_path / "none"})
    with pytest.raises(StartFailed, match="contains no version directory such as 1/"):
        check_base_paths({"m": tmp_path})
    version = tmp_path / "1"
    version.mkdir()
    (version / "saved_model.pb").touch()
    with pytest.raises(
        StartFailed, match=r"is itself version 1: it contains saved_model\.pb\. Use its parent directory"
    ):
        check_base_paths({"m": version})
    with pytest.raises(StartFailed, match="does not exist or is not a directory"):
        check_base_paths({"m": version / "saved_model.pb"})
    check_base_paths({"m": tmp_path, "stored": "s3://bucket/models/m"})
