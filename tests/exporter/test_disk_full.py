"""Tests for a full disk at any moment of an export: exit code 5, the required space, and no files left behind."""

import errno
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.exporter.conftest import Finished
from tpuserve_exporter.destinations.staging import disk_errors
from tpuserve_exporter.errors import PublishFailed, SourceUnreadable

pytestmark = [pytest.mark.xdist_group(__name__)]
# `hidden/kernel` takes 1.2 MB, and all other files take less than 300 kB.
WIDE = ("--model", "tests.exporter.builders:tiny", "--model-arg", "units=100000", "--batch-sizes", "1")


@pytest.fixture(scope="module")
def wide_checkpoint(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.exporter import builders
    from tests.exporter.conftest import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("wide"), builders.tiny(units=100_000))


@pytest.fixture
def largest_file() -> Iterator[Callable[[int], None]]:
    """Limit the file size of this process in bytes, like `ulimit -f`. Restore the limit at the end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The first limit stops saved_model.pb, the second the variables.
@pytest.mark.parametrize("limit", [4_000, 900_000])
def test_a_file_that_cannot_be_written_whole_ends_the_export_with_what_was_needed(
    export: Callable[..., Finished],
    wide_checkpoint: Path,
    tmp_path: Path,
    largest_file: Callable[[int], None],
    limit: int,
) -> None:
    base = tmp_path / "models" / "wide"
    largest_file(limit)
    done = export(wide_checkpoint, base, *WIDE)
    largest_file(resource.RLIM_INFINITY)
    assert done.code == 5
    assert f"cannot write to {base}: the file is larger than the limit (ulimit -f)" in done.err
    assert "The version needs at least 2.4 MB, and " in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "models").exists()


def test_a_copied_saved_model_is_no_exception(
    export: Callable[..., Finished], wide_checkpoint: Path, tmp_path: Path, largest_file: Callable[[int], None]
) -> None:
    assert export(wide_checkpoint, tmp_path / "first", *WIDE).code == 0
    largest_file(900_000)
    done = export(tmp_path / "first/1", tmp_path / "second", "--batch-sizes", "1", "--json")
    largest_file(resource.RLIM_INFINITY)
    assert (done.code, done.document["kind"]) == (5, "PublishFailed")
    assert "the file is larger than the limit" in done.document["error"]
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("number", "text"), [(errno.ENOSPC, "no space is left on the disk"), (errno.EDQUOT, "the disk quota is used up")]
)
def test_a_full_disk_is_told_from_what_a_library_made_of_it(tmp_path: Path, number: int, text: str) -> None:
    (tmp_path / "half").write_bytes(bytes(1_000_000))
    wrapped = SourceUnreadable("cannot copy a file")
    wrapped.__cause__ = OSError(number, "words of the system", "model.h5")
    message = rf"cannot write to models/m: {text}.* at least 12.3 MB, and 1.0 MB could be"
    with pytest.raises(PublishFailed, match=message), disk_errors(tmp_path, "models/m", lambda: 12_300_000):
        raise wrapped


def test_other_errors_of_the_disk_are_of_publishing_and_others_pass(tmp_path: Path) -> None:
    with (
        pytest.raises(PublishFailed, match="cannot write to models/m: Input/output error"),
        disk_errors(tmp_path, "models/m", lambda: 0),
    ):
        raise OSError(errno.EIO, "Input/output error", str(tmp_path / "saved_model.pb"))
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path, "models/m", lambda: 0):
        raise FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere")
