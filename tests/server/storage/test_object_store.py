import ssl
import sys
import time
from pathlib import Path

import pytest
import trustme

from tests.support.counting_proxy import CountingProxy
from tests.support.object_stores import BUCKET, RunningStore
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.storage.object_store import ObjectStore, StoredObject, StoreError, store_of


def only(store: ObjectStore, uri: str) -> StoredObject:
    """Return the only object."""
    objects = store.list(uri)
    assert objects is not None
    assert len(objects) == 1
    return objects[0]


@pytest.mark.parametrize(
    ("scheme", "module", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs.core", "gcs"), ("s3", "fsspec", "s3")]
)
def test_a_missing_extra_is_named(scheme: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FailedPrecondition, match=rf"pip install 'tpuserve-server\[{extra}\]'"):
        ObjectStore(scheme)


@pytest.mark.parametrize("scheme", ["nosuch", "webhdfs", "dir"])
def test_a_scheme_that_is_unknown_or_needs_more_than_a_uri_is_refused(scheme: str) -> None:
    with pytest.raises(InvalidArgument, match=f"does not support paths of {scheme}://"):
        ObjectStore(scheme)


def test_an_object_says_its_size_its_hash_and_when_it_changed(store: RunningStore) -> None:
    objects = ObjectStore(store.scheme)
    store.put("hashes/a", b"123")
    first = only(objects, store.uri("hashes"))
    assert (first.name, first.key, first.size_bytes) == ("a", f"{BUCKET}/hashes/a", 3)
    assert first.md5 is not None
    assert first.md5.hex() == "202cb962ac59075b964b07152d234b70"
    assert objects.has_md5(first)
    store.put("hashes/a", b"456")
    second = only(objects, store.uri("hashes"))
    assert second.tag != first.tag
    assert second.written_unix_s is not None
    assert abs(second.written_unix_s - time.time()) < 60
    assert objects.read(second, 1, 3) == b"56"


def test_what_a_store_refuses_is_one_line_and_its_kind(store: RunningStore) -> None:
    missing = StoredObject("a", f"{BUCKET}/no/such/object", 3, "")
    with pytest.raises(StoreError) as caught:
        ObjectStore(store.scheme).read(missing, 0, 3)
    assert caught.value.kind == "FileNotFoundError"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_the_etag_of_an_object_that_kms_encrypts_is_no_md5(store: RunningStore) -> None:
    objects = ObjectStore("s3")
    options = {"ServerSideEncryption": "aws:kms"}
    store.files.call_s3("put_object", Bucket=BUCKET, Key="kms/a", Body=b"1", **options)
    encrypted = only(objects, store.uri("kms"))
    assert not objects.has_md5(encrypted)
    with pytest.raises(StoreError):
        objects.has_md5(StoredObject("a", f"{BUCKET}/no/such/object", 3, ""))


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_an_object_that_came_in_parts_has_no_md5(store: RunningStore) -> None:
    parts = [b"x" * 5 * 2**20, b"y"]
    path = f"{BUCKET}/parts/a"
    with store.files.open(path, "wb", block_size=len(parts[0])) as file:
        for part in parts:
            file.write(part)
    stored = only(ObjectStore("s3"), store.uri("parts"))
    assert stored.md5 is None
    assert stored.size_bytes == sum(len(part) for part in parts)


def test_hashes_that_are_none_are_left_out() -> None:
    info = {"name": "b/a", "size": None, "md5Hash": "not base64!", "crc32c": 7, "generation": "1", "etag": None}
    assert StoredObject.from_listing("a", info) == StoredObject("a", "b/a", 0, "1")


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_tensorflows_variables_lead_to_a_store_with_tls(
    store: RunningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    store.put("tls/1/saved_model.pb", b"x")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with CountingProxy(store.port, tls=context).running() as proxy:
        monkeypatch.setenv("S3_ENDPOINT", f"127.0.0.1:{proxy.port}")
        with pytest.raises(StoreError, match="certificate verify failed"):
            store_of("s3://x").list(store.uri("tls"))
        for name, value in (("S3_CA_FILE", str(tmp_path / "ca.pem")), ("S3_VERIFY_SSL", "0")):
            with monkeypatch.context() as environment:
                environment.setenv(name, value)
                assert [one.name for one in store_of("s3://x").list(store.uri("tls")) or ()] == ["1/saved_model.pb"]
        assert proxy.listings == {"tls/": 2}
