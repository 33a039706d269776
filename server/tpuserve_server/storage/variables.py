"""Environment variables of TensorFlow's file systems for S3 and GCS, as options of the file systems of fsspec.

The libraries of the stores read AWS' and Google's own variables. docs/how-to/serve/object-stores.md lists all of them.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from tpuserve_server.core.terms.errors import FailedPrecondition

logger = logging.getLogger(__name__)

# Variables that the server must not run without, and the remedy.
_REFUSED: Final = {
    "S3_CA_PATH": "Use S3_CA_FILE, one file with the certificates",
    "GCS_ALLOWED_BUCKET_LOCATIONS": "Allow the server's account to read only buckets of these locations",
    "GOOGLE_AUTH_TOKEN_FOR_TESTING": "Use GOOGLE_APPLICATION_CREDENTIALS",
}
_RANGES: Final = "The server copies each version in ranges of 8 MiB, 8 at a time"
_CACHE: Final = "The server copies each version to --storage_cache_dir, and reads it there"
_RETRIES: Final = "The server waits for a store as the libraries of the store do, and asks a failing store less often"
# Variables that tune what this server does in another way, and that way.
_WITHOUT_EFFECT: Final = {
    "S3_DISABLE_MULTI_PART_DOWNLOAD": _RANGES,
    "S3_MULTI_PART_DOWNLOAD_CHUNK_SIZE": _RANGES,
    "S3_MULTI_PART_UPLOAD_CHUNK_SIZE": "The server uploads nothing",
    "AWS_LOG_LEVEL": "The server logs each failure of a store",
    "GCS_READ_CACHE_BLOCK_SIZE_MB": _CACHE,
    "GCS_READ_CACHE_DISABLED": _CACHE,
    "GCS_READ_CACHE_MAX_SIZE_MB": _CACHE,
    "GCS_READ_CACHE_MAX_STALENESS": _CACHE,
    "GCS_READAHEAD_BUFFER_SIZE_BYTES": _CACHE,
    "GCS_STAT_CACHE_MAX_AGE": _CACHE,
    "GCS_STAT_CACHE_MAX_ENTRIES": _CACHE,
    "GCS_MATCHING_PATHS_CACHE_MAX_AGE": _CACHE,
    "GCS_MATCHING_PATHS_CACHE_MAX_ENTRIES": _CACHE,
    "GCS_RESOLVE_REFRESH_SECS": _RETRIES,
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": _RETRIES,
    "GCS_METADATA_REQUEST_TIMEOUT_SECS": _RETRIES,
    "GCS_READ_REQUEST_TIMEOUT_SECS": _RETRIES,
    "GCS_REQUEST_CONNECTION_TIMEOUT_SECS": _RETRIES,
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": _RETRIES,
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": _RETRIES,
    "GCS_RETRY_CONFIG_MAX_RETRIES": _RETRIES,
    "GCS_THROTTLE_TOKEN_RATE": _RETRIES,
    "GCS_THROTTLE_BUCKET_SIZE": _RETRIES,
    "GCS_TOKENS_PER_REQUEST": _RETRIES,
    "GCS_INITIAL_TOKENS": _RETRIES,
    "GCS_WRITE_REQUEST_TIMEOUT_SECS": "The server uploads nothing",
    "GCS_APPEND_MODE": "The server uploads nothing",
}
# More connections than the source has threads, and the copies have ranges.
_MOST_CONNECTIONS: Final = 64


def s3_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of s3fs.S3FileSystem for the variables of `environment`.

    Raises:
        FailedPrecondition: a variable cannot be honoured, is invalid, or contradicts another one.
    """
    values = _check(environment, ("S3_", "AWS_"))
    config: dict[str, Any] = {"max_pool_connections": _MOST_CONNECTIONS}
    client: dict[str, Any] = {}
    for name, argument in (("S3_CONNECT_TIMEOUT_MSEC", "connect_timeout"), ("S3_REQUEST_TIMEOUT_MSEC", "read_timeout")):
        if name in values:
            config[argument] = _milliseconds(name, values[name]) / 1000
    if region := values.get("AWS_REGION") or values.get("S3_REGION"):
        client["region_name"] = region
    if not _is_on(values, "S3_VERIFY_SSL"):
        client["verify"] = False
    elif "S3_CA_FILE" in values:
        client["verify"] = values["S3_CA_FILE"]
    uses_https = _is_on(values, "S3_USE_HTTPS")
    options: dict[str, Any] = {"config_kwargs": config, "client_kwargs": client, "use_ssl": uses_https}
    if endpoint := _endpoint(values, uses_https):
        options["endpoint_url"] = endpoint
    return options


def gcs_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of gcsfs.GCSFileSystem for the variables of `environment`. Raises as `s3_options`."""
    values = _check(environment, ("GCS_", "GOOGLE_"))
    if (header := values.get("GCS_ADDITIONAL_REQUEST_HEADER")) is None:
        return {}
    name, colon, content = header.partition(":")
    if not (colon and name.strip()):
        raise _invalid("GCS_ADDITIONAL_REQUEST_HEADER", header, "a name, a colon and a value")
    return {"session_kwargs": {"headers": {name.strip(): content.strip()}}}


def _check(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> Mapping[str, str]:
    """Return the variables that are set and not empty. Raises FailedPrecondition for one that is refused."""
    values = {name: value for name, value in environment.items() if value and name.startswith(prefixes)}
    for name in sorted(values):
        if remedy := _REFUSED.get(name):
            raise FailedPrecondition(f"The server cannot honour the variable {name}. {remedy}")
        if way := _WITHOUT_EFFECT.get(name):
            _warn(f"The variable {name} has no effect. {way}")
    return values


@cache
def _warn(line: str) -> None:
    """Log a warning once for each process."""
    logger.warning("%s", line)


def _endpoint(values: Mapping[str, str], uses_https: bool) -> str | None:
    """Return the URL in S3_ENDPOINT, or None without the variable: botocore reads AWS' variables.

    A scheme in the variable takes precedence over S3_USE_HTTPS, as in TensorFlow.
    """
    endpoint = values.get("S3_ENDPOINT")
    if endpoint is None:
        return None
    url = endpoint if "://" in endpoint else f"http{'s' if uses_https else ''}://{endpoint}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise _invalid("S3_ENDPOINT", endpoint, "a host and a port, such as minio:9000")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        # botocore takes the first one that is set. Signed requests must not go to another store than the operator's.
        if other := values.get(name):
            if other.rstrip("/").lower() != url.rstrip("/").lower():
                raise FailedPrecondition(
                    f"The variables S3_ENDPOINT and {name} name different stores: {url} and {other}. Unset one of them"
                )
            break
    return url


def _is_on(values: Mapping[str, str], name: str) -> bool:
    value = values.get(name, "1")
    if value not in ("0", "1"):
        raise _invalid(name, value, "0 or 1")
    return value == "1"


def _milliseconds(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise _invalid(name, value, "a number of milliseconds above 0")
    return int(value)


def _invalid(name: str, value: str, expected: str) -> FailedPrecondition:
    return FailedPrecondition(f"The variable {name} must be {expected}; was {value!r}")
