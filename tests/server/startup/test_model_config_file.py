import re
from pathlib import Path

import pytest

from tpuserve_formats.messages.model_server_config import ModelServerConfig, configuration_sha256
from tpuserve_formats.messages.official import ReloadConfigRequest
from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.startup.config_files import ConfigError
from tpuserve_server.startup.model_config_file import ModelConfigFile, model_config_file, read_models, read_start_models
from tpuserve_server.startup.server_settings import ModelSettings


def read_model_configs(path: Path) -> tuple[ModelConfig, ...]:
    return ModelConfigFile(path, poll_wait_s=0).read()


TWO_MODELS = """
# A comment, as in every text proto.
model_config_list: {
  config: { name: "a", base_path: "/models/a", model_platform: "tensorflow" },
  config { name: 'b' base_path: "/models/b" model_platform: "tensorflow" }
}
"""


def test_models_come_in_the_files_order(tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    file.write_text(TWO_MODELS)
    assert read_model_configs(file) == (ModelConfig("a", "/models/a"), ModelConfig("b", "/models/b"))


def test_an_empty_file_configures_no_model(tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    file.touch()
    assert read_model_configs(file) == ()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "model_config_list {\n  config { nme: 'x' }\n}",
            '2:12: Message type "tensorflow.serving.ModelConfig" has no field named "nme"',
        ),
        ("model_config_list {\n  config { name: 3 }\n}", "2:18: Expected string but found: '3'"),
        ("model_config_list {", '1:19: Expected "}"'),
        ("model_config_list { config { name: 'a' name: 'b' } }", '1:46: .* should not have multiple "name" fields'),
        ("model_config_list { config { name: 'a }", "1:36: String missing ending quote: "),
        ("\0", "1:1: Expected identifier or number, got"),
        (
            "model_config_list{config{model_version_policy{specific{versions: 99999999999999999999}}}}",
            "1:66: Value out of range: 99999999999999999999",
        ),
        ("custom_model_config { [type.googleapis.com/no.Such] { x: 1 } }", "Type no.Such not found"),
    ],
)
def test_a_wrong_file_is_explained_in_one_line_with_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "models.config"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_model_configs(file)
    line = str(raised.value)
    assert re.match(f"Error parsing text-format tensorflow.serving.ModelServerConfig: {where}", line)
    assert str(file) in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("custom_model_config {}", "Only ModelConfigList is currently supported"),
        ("model_config_list { config { name: 'm' } }", "Illegal setting neither .* model name is m"),
    ],
)
def test_a_file_that_is_no_list_of_models_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "models.config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_model_configs(file)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read '.*/none': No such file or directory"):
        read_model_configs(tmp_path / "none")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_model_configs(tmp_path)
    (tmp_path / "latin").write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 5\)"):
        read_model_configs(tmp_path / "latin")


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


def sha256_of(*names: str) -> str:
    config = ModelServerConfig()
    for name in names:
        config.model_config_list.config.add(name=name, base_path=f"/{name}", model_platform="tensorflow")
    return configuration_sha256(config)


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
    first = read_start_models(models, file, record)
    assert (first.names, first.sha256) == (["a"], sha256_of("a"))
    record.write(request.SerializeToString(), ["c"])
    assert start() == ["b"]
    # A file that the last process has not read is newer than the reload.
    path.write_text(FILE.format("d"))
    assert start() == ["d"]
    # A reload after it is newer than the file.
    assert file is not None
    file.poll(lambda configs, sha256: None)
    record.write(request.SerializeToString(), [])
    assert start() == ["b", "c"]
    assert read_start_models(models, model_config_file(models), record).sha256 == sha256_of("b", "c")
