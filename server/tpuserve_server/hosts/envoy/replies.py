"""Envoy's own responses, in the error form of the REST application or of gRPC."""

from typing import Any

from tpuserve_server.hosts.inference_paths import OVERLOADED

Config = dict[str, Any]


def local_replies() -> Config:
    """Return HttpConnectionManager's `local_reply_config`.

    For gRPC calls, Envoy turns the text into the grpc-message and the HTTP status into a gRPC code.
    """
    return {
        "mappers": [
            {
                "filter": _all(_SHED, _is_grpc(False)),
                "headers_to_add": [_header("retry-after", "1")],
                "body_format_override": _error(OVERLOADED),
            },
            {
                "filter": _all(_SHED, _is_grpc(True)),
                "headers_to_add": [_header("grpc-retry-pushback-ms", str(_RETRY_MS))],
                "body_format_override": {"text_format_source": {"inline_string": OVERLOADED}},
            },
            {
                "filter": _all(_REFUSED_PATH, _is_grpc(False)),
                # The application's response to a name that it cannot decode.
                "status_code": 400,
                "body_format_override": _error("Failed to decode model name:%REQ(:PATH)%"),
            },
            {
                "filter": _all(_REFUSED_PATH, _is_grpc(True)),
                # Maps to UNIMPLEMENTED, as for any unknown method (grpc/grpc, doc/http-grpc-status-mapping.md).
                "status_code": 404,
                "body_format_override": {"text_format_source": {"inline_string": "Unknown method %REQ(:PATH)%"}},
            },
            {
                "filter": _is_grpc(False),
                "body_format_override": _error("The request was refused: %RESPONSE_CODE_DETAILS%"),
            },
        ]
    }


# Matches the 403 of the filter in paths.py. Envoy's own message for it is about access control.
_REFUSED_PATH: Config = {
    "status_code_filter": {"comparison": {"op": "EQ", "value": {"default_value": 403, "runtime_key": "unused"}}}
}

# Matches refusals of the filters in shedding_filters.py: FI is Envoy's flag of fault injection.
_SHED: Config = {"response_flag_filter": {"flags": ["FI"]}}
# Hint for a retry: longer than the share of refused requests takes to follow the load.
_RETRY_MS = 200


def _is_grpc(wanted: bool) -> Config:
    header = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
        "invert_match": not wanted,
        "treat_missing_header_as_empty": True,
    }
    return {"header_filter": {"header": header}}


def _all(*filters: Config) -> Config:
    return {"and_filter": {"filters": list(filters)}}


def _header(name: str, value: str) -> Config:
    return {"header": {"key": name, "value": value}}


def _error(message: str) -> Config:
    return {"json_format": {"error": message}}
