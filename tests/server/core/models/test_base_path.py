import pytest

from tpuserve_server.core.models.base_path import describe_version_as_base, describe_without_version


@pytest.mark.parametrize("base_path", ["/models/digits/7", "/models/digits/7/", "gs://models/digits/007"])
def test_a_version_as_base_path_names_the_folder_above_it(base_path: str) -> None:
    parent = base_path.rstrip("/").rpartition("/")[0]
    described = describe_version_as_base(base_path, "saved_model.pb")
    assert f"base path {base_path} is itself version " in described
    assert described.endswith(f'--model_base_path={parent}, or base_path: "{parent}" in a model configuration')


def test_a_model_in_a_folder_without_a_number_is_to_get_one() -> None:
    described = describe_version_as_base("/models/digits", "saved_model.pb")
    assert "Move its files into a directory whose name is a whole number, such as /models/digits/1" in described


def test_a_base_path_without_a_version_is_described() -> None:
    assert describe_without_version("m", exists=False, file="") == "base path m does not exist or is not a directory"
    assert describe_without_version("m", exists=True, file="") == "base path m contains no version directory such as 1/"
    as_base = describe_version_as_base("m/1", "saved_model.pb")
    assert describe_without_version("m/1", exists=True, file="saved_model.pb") == as_base
