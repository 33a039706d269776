"""Tests for the models to start with."""

from pathlib import Path

import pytest

from tpuserve_formats.messages.official import ReloadConfigRequest
from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.startup.model_settings import ModelSettings
from tpuserve_server.startup.start_models import model_config_file, read_models, read_start_models
from tpuserve_server.startup.text_format import ConfigError

FILE = 'model_config_list {{ config {{ name: "{0}" base_path: "/{0}" model_platform: "tensorflow" }} }}'


def test_flags_configure_a_single_model() -> None:
    models = ModelSettings(model_name="m", model_base_path="/models/m")
    assert model_config_file(models) is None
    assert read_models(models, None) == [ModelConfig("m", "/models/m")]


def test_a_file_takes_the_place_of_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "models.config"
    path.write_text(FILE.format("a"))
    models = ModelSettings(model_name="m", model_config_file=path)
    assert [(config.name, config.base_path) for config in read_models(models, model_config_file(models))] == [
        ("a", "/a")
    ]


def test_an_unusable_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "models.config"
    path.write_text("model_config_list {")
    models = ModelSettings(model_config_file=path)
    with pytest.raises(ConfigError):
        read_models(models, model_config_file(models))


def test_changes_of_clients_refer_to_the_text_of_the_file_in_force(tmp_path: Path) -> None:
    path = tmp_path / "models.config"
    models = ModelSettings(model_config_file=path)
    record = ChangeRecord(tmp_path)
    request = ReloadConfigRequest()
    for name in "bc":
        request.config.model_config_list.config.add(name=name, base_path=f"/{name}", model_platform="tensorflow")

    def start() -> list[str]:
        return read_start_models(models, model_config_file(models), ChangeRecord(tmp_path)).names

    path.write_text(FILE.format("a"))
    file = model_config_file(models, record)
    assert read_start_models(models, file, record).names == ["a"]
    record.write(request.SerializeToString(), ["c"])
    assert start() == ["b"]
    # A file that the last process has not read is newer than the reload.
    path.write_text(FILE.format("d"))
    assert start() == ["d"]
    # A reload after it is newer than the file.
    assert file is not None
    file.poll(lambda configs: None)
    record.write(request.SerializeToString(), [])
    assert start() == ["b", "c"]
