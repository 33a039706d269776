import pytest

from tests.support.fake_device import FakeServable
from tpuserve_server.versions.loading import why_not_cached
from tpuserve_server.versions.manifest import Manifest, SignatureEntry

STABLE = SignatureEntry(rows_independent=True)
VARYING = SignatureEntry(rows_independent=True, deterministic=False)
DEPENDENT = SignatureEntry()


@pytest.mark.parametrize(
    ("entries", "batched", "reason"),
    [
        (None, {"a"}, ""),
        ({"a": STABLE, "b": DEPENDENT}, {"a"}, ""),
        ({"a": STABLE, "b": VARYING}, {"a"}, "the manifest states that signature 'b' is not deterministic"),
        (
            {"a": DEPENDENT},
            {"a"},
            "rows of other requests may change the outputs of signature 'a', by the manifest",
        ),
    ],
)
def test_the_manifest_decides_for_the_whole_version(
    entries: dict[str, SignatureEntry] | None, batched: set[str], reason: str
) -> None:
    manifest = None if entries is None else Manifest(format_version=1, signatures=entries)
    assert why_not_cached(FakeServable(), manifest, batched) == reason


def test_the_executor_decides_where_the_manifest_allows_a_cache() -> None:
    manifest = Manifest(format_version=1, signatures={"a": STABLE})
    assert why_not_cached(FakeServable(unrepeatable="it counts"), manifest, {"a"}) == "it counts"
