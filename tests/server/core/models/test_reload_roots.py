"""Tests for the paths that a client's reload may name."""

import logging
from pathlib import Path

import pytest

from tpuserve_server.core.models.configuration_rules import ReloadRoots
from tpuserve_server.core.models.model_config import LoggingConfig, ModelConfig
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import InvalidArgument, PermissionDenied, ServingError
from tpuserve_server.core.terms.options import ReloadOptions


def started_with(*base_paths: str, log: str | None = None, roots: ReloadRoots | None = None) -> ReloadRoots:
    roots = roots or ReloadRoots(ReloadOptions())
    logging_config = None if log is None else LoggingConfig("jsonl", log, 1)
    roots.trust([ModelConfig(f"m{index}", path, logging=logging_config) for index, path in enumerate(base_paths)])
    return roots


def allows(roots: ReloadRoots, base_path: str) -> bool:
    try:
        roots.check([ModelConfig("new", base_path)])
    except PermissionDenied:
        return False
    return True


def refusal(roots: ReloadRoots, prefix: str, base_path: str = "/models/a") -> ServingError | None:
    try:
        roots.check([ModelConfig("new", base_path, logging=LoggingConfig("jsonl", prefix, 1))])
    except ServingError as error:
        return error
    return None


@pytest.mark.parametrize("path", ["/models/a", "/models/b", "/models/b/", "/models/deep/c", "file:///models/b"])
def test_a_directory_beside_a_base_path_of_the_start_is_allowed(path: str) -> None:
    assert allows(started_with("/models/a"), path)
    assert allows(started_with("file:///models/a"), path)


@pytest.mark.parametrize(
    "path",
    [
        "/etc",
        "/models2/a",
        "/models/../etc",
        "/models/a/../../etc",
        "file:///etc",
        "file://models/a",
        "file:///models/../etc",
        "FILE:///models/b",
        "local:///models/b",
        "memory://models/b",
        "s3://models/b",
        "gs://models/b",
        "foo:///models/b",
        "/",
    ],
)
def test_other_paths_and_schemes_are_refused(path: str) -> None:
    assert not allows(started_with("/models/a"), path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gs://bucket/models/a", True),
        ("gs://bucket/models/b", True),
        ("gs://bucket/models/b/", True),
        ("gs://bucket/other", False),
        ("gs://bucket2/models/b", False),
        ("gs://bucket", False),
        ("gs://", False),
        ("gs:///models/b", False),
        ("gs://bucket/models/../other", False),
        ("gs://bucket/models/%2e%2e/other", False),
        ("gs://bucket/models//b", False),
        ("gs://bucket/models/%zz", True),
        ("gcs://bucket/models/b", False),
        ("s3://bucket/models/b", False),
        ("/bucket/models/b", False),
    ],
)
def test_a_uri_must_have_the_scheme_and_the_parent_of_one_of_the_start(path: str, expected: bool) -> None:
    assert allows(started_with("gs://bucket/models/a"), path) is expected


def test_a_link_out_of_the_allowed_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "models" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "models" / "loop").symlink_to("loop")
    (tmp_path / "models" / "same").symlink_to("a")
    roots = started_with(str(tmp_path / "models" / "a"))
    assert not allows(roots, str(tmp_path / "models" / "link"))
    assert not allows(roots, str(tmp_path / "models" / "link" / "x"))
    assert allows(roots, str(tmp_path / "models" / "same"))
    assert allows(roots, str(tmp_path / "models" / "loop"))


def test_base_paths_of_the_start_stay_allowed_wherever_their_links_lead(tmp_path: Path) -> None:
    (tmp_path / "versions" / "7").mkdir(parents=True)
    (tmp_path / "volume").symlink_to("versions")
    link = tmp_path / "volume" / "7"
    roots = started_with(str(link), "/model")
    assert allows(roots, str(link))
    assert allows(roots, str(tmp_path / "versions" / "8"))
    # The parent of /model is the whole machine.
    assert allows(roots, "/model")
    assert not allows(roots, "/etc")


def test_flags_replace_the_directories_beside_base_paths() -> None:
    roots = started_with("/models/a", roots=ReloadRoots(ReloadOptions(("/store", "gs://", "s3://b/m/"))))
    assert allows(roots, "/models/a")
    assert not allows(roots, "/models/b")
    assert allows(roots, "/store/x")
    assert allows(roots, "gs://any/m")
    assert not allows(roots, "gs://")
    assert allows(roots, "s3://b/m/x")
    assert not allows(roots, "s3://b/n")
    assert allows(ReloadRoots(ReloadOptions(("/",))), "/etc")


def test_the_directory_of_the_image_and_later_files_of_the_operator_are_allowed() -> None:
    roots = ReloadRoots(ReloadOptions(), base_root="/models")
    assert allows(roots, "/models/b")
    assert not allows(roots, "/late/b")
    roots.trust([ModelConfig("late", "/late/a")])
    assert allows(roots, "/late/b")


def test_without_models_at_the_start_nothing_is_allowed() -> None:
    assert not allows(ReloadRoots(ReloadOptions(), base_root="/"), "/models/a")


def test_ensembles_have_no_base_path() -> None:
    started_with("/models/a").check([ModelConfig("e", "", "ensemble", ensemble=Ensemble(()))])


def test_request_logs_stay_in_the_directories_of_the_start(tmp_path: Path) -> None:
    roots = started_with("/models/a", log="/logs/m0")
    assert refusal(roots, "/logs/m0") is None
    assert refusal(roots, "/logs/new/m1") is None
    for prefix in ("/logs2/m", "/logs/../etc/m", "/etc/cron.d/x", "/models/a/x", "/x"):
        error = refusal(roots, prefix)
        assert isinstance(error, PermissionDenied), prefix
        assert f"may not log requests to {prefix}" in error.message
        assert "--reload_log_roots" in error.message
    assert isinstance(refusal(roots, "logs/m"), InvalidArgument)
    assert isinstance(refusal(roots, "gs://bucket/m"), InvalidArgument)
    (tmp_path / "link").symlink_to("/etc")
    linked = ReloadRoots(ReloadOptions(("/models",), (str(tmp_path),)))
    assert refusal(linked, str(tmp_path / "m")) is None
    assert isinstance(refusal(linked, str(tmp_path / "link" / "m")), PermissionDenied)


def test_a_server_without_request_logs_accepts_none_from_a_reload() -> None:
    assert isinstance(refusal(started_with("/models/a"), "/logs/m"), PermissionDenied)
    own = ReloadRoots(ReloadOptions(("/models",)), log_prefix="/logs/all")
    assert refusal(own, "/logs/m") is None


def test_a_refusal_names_the_path_and_the_flag_and_no_other_path(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(PermissionDenied) as caught:
        started_with("/models/a").check([ModelConfig("new", "/etc/x")])
    assert caught.value.message.startswith("Model new: a reload may not use base path /etc/x. ")
    assert "--reload_roots" in caught.value.message
    assert "/models" not in caught.value.message
    assert "Allowed directories: /models" in caplog.text


@pytest.mark.parametrize("options", [(("models",), ()), ((), ("logs",)), ((), ("gs://b/logs",)), (("/a\n",), ())])
def test_roots_of_flags_are_absolute(options: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    with pytest.raises(InvalidArgument):
        ReloadOptions(*options)
