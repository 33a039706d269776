"""Tests that the list of differences from TensorFlow Serving has every flag with the program's own description."""

import pytest

from tests.deploy.dockerfile import ROOT
from tests.support.upstream_flags import UPSTREAM_FLAGS
from tpuserve_server.startup.command import serve
from tpuserve_server.startup.flag_command import UNNEEDED

DIFFERENCES = (ROOT / "docs/reference/differences-from-tensorflow-serving.md").read_text(encoding="utf-8")
FLAGS = (ROOT / "docs/reference/server-flags.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("flag", UPSTREAM_FLAGS)
def test_every_flag_of_tensorflow_serving_is_documented(flag: str) -> None:
    assert f"`--{flag}`" in DIFFERENCES + FLAGS


def test_flags_without_effect_are_listed_with_the_words_of_their_notice() -> None:
    rows = {line for line in DIFFERENCES.splitlines() if line.startswith("| `--")}
    expected = {f"| `--{flag.name}` | {flag.instead} |" for flag in UNNEEDED if not flag.refused}
    assert expected <= rows
    two_columns = {row for row in rows if row.count(" | ") == 1}
    assert two_columns == expected


def test_flags_that_are_refused_are_named() -> None:
    for flag in UNNEEDED:
        if flag.refused:
            assert f"`--{flag.name}` is refused" in DIFFERENCES


def test_the_differences_name_no_flag_that_does_not_exist() -> None:
    known = {option.opts[0] for option in serve.params}
    named = {
        word.strip("`,:;.)").partition("=")[0]
        for word in DIFFERENCES.replace("`", " ` ").split()
        if word.startswith("--")
    }
    assert named - {"--x"} <= known
