"""Tests for the environment variables of TensorFlow's file systems for S3 and GCS."""

from typing import Any

import pytest

from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.storage import variables
from tpuserve_server.storage.variables import gcs_options, s3_options


def client_options(**environment: str) -> dict[str, Any]:
    options: dict[str, Any] = s3_options(environment)["client_kwargs"]
    return options


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        ({"S3_ENDPOINT": "minio:9000"}, "https://minio:9000"),
        ({"S3_ENDPOINT": "minio:9000", "S3_USE_HTTPS": "1"}, "https://minio:9000"),
        ({"S3_ENDPOINT": "minio:9000", "S3_USE_HTTPS": "0"}, "http://minio:9000"),
        ({"S3_ENDPOINT": "http://minio:9000"}, "http://minio:9000"),
        ({"S3_ENDPOINT": "minio:9000", "AWS_ENDPOINT_URL": "https://minio:9000/"}, "https://minio:9000"),
        ({"S3_ENDPOINT": "a", "AWS_ENDPOINT_URL_S3": "https://a", "AWS_ENDPOINT_URL": "https://b"}, "https://a"),
        ({"S3_ENDPOINT": "", "AWS_ENDPOINT_URL": "http://minio:9000"}, None),
    ],
)
def test_an_endpoint_is_tensorflows(environment: dict[str, str], url: str | None) -> None:
    assert s3_options(environment).get("endpoint_url") == url


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_two_endpoints_are_refused(name: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        s3_options({"S3_ENDPOINT": "minio:9000", "S3_USE_HTTPS": "0", name: "https://s3.amazonaws.com"})
    assert caught.value.message == (
        f"The variables S3_ENDPOINT and {name} name different stores: http://minio:9000 and https://s3.amazonaws.com. "
        "Unset one of them"
    )


def test_the_other_variables_of_s3_are_honoured() -> None:
    assert client_options() == {}
    assert client_options(S3_REGION="eu-west-1") == {"region_name": "eu-west-1"}
    assert client_options(S3_REGION="eu-west-1", AWS_REGION="us-west-2") == {"region_name": "us-west-2"}
    assert client_options(S3_VERIFY_SSL="0", S3_CA_FILE="/ca.pem") == {"verify": False}
    assert client_options(S3_VERIFY_SSL="1", S3_CA_FILE="/ca.pem") == {"verify": "/ca.pem"}
    assert s3_options({})["use_ssl"] is True
    assert s3_options({"S3_USE_HTTPS": "0"})["use_ssl"] is False
    config = s3_options({"S3_CONNECT_TIMEOUT_MSEC": "2500", "S3_REQUEST_TIMEOUT_MSEC": "60000"})["config_kwargs"]
    assert config == {"max_pool_connections": 64, "connect_timeout": 2.5, "read_timeout": 60.0}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("S3_USE_HTTPS", "false", "0 or 1"),
        ("S3_VERIFY_SSL", "no", "0 or 1"),
        ("S3_CONNECT_TIMEOUT_MSEC", "soon", "a number of milliseconds above 0"),
        ("S3_REQUEST_TIMEOUT_MSEC", "0", "a number of milliseconds above 0"),
        ("S3_ENDPOINT", "ftp://minio", "a host and a port, such as minio:9000"),
        ("S3_ENDPOINT", "https://", "a host and a port, such as minio:9000"),
    ],
)
def test_an_invalid_value_is_refused(name: str, value: str, expected: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        s3_options({name: value})
    assert caught.value.message == f"The variable {name} must be {expected}; was {value!r}"


def test_a_header_is_sent_to_gcs() -> None:
    assert gcs_options({}) == {}
    options = gcs_options({"GCS_ADDITIONAL_REQUEST_HEADER": "x-team: vision"})
    assert options == {"session_kwargs": {"headers": {"x-team": "vision"}}}
    with pytest.raises(FailedPrecondition, match="must be a name, a colon and a value; was 'vision'"):
        gcs_options({"GCS_ADDITIONAL_REQUEST_HEADER": "vision"})


def test_what_the_server_must_not_ignore_is_refused_for_its_scheme_alone() -> None:
    with pytest.raises(FailedPrecondition, match=r"^The server cannot honour the variable S3_CA_PATH\. Use S3_CA_FILE"):
        s3_options({"S3_CA_PATH": "/certificates"})
    gcs_options({"S3_CA_PATH": "/certificates"})
    for name in ("GCS_ALLOWED_BUCKET_LOCATIONS", "GOOGLE_AUTH_TOKEN_FOR_TESTING"):
        with pytest.raises(FailedPrecondition, match=f"^The server cannot honour the variable {name}"):
            gcs_options({name: "auto"})
        s3_options({name: "auto"})


def test_what_has_no_effect_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    variables._warn.cache_clear()
    for _ in range(2):
        gcs_options({"GCS_READ_CACHE_MAX_SIZE_MB": "64"})
        s3_options({"AWS_LOG_LEVEL": "3"})
    assert [record.message for record in caplog.records] == [
        "The variable GCS_READ_CACHE_MAX_SIZE_MB has no effect. The server copies each version to "
        "--storage_cache_dir, and reads it there",
        "The variable AWS_LOG_LEVEL has no effect. The server logs each failure of a store",
    ]
