"""What Envoy answers by itself, in the shape that the REST application gives to errors; gRPC's in gRPC's."""

from typing import Any

Config = dict[str, Any]


def local_replies() -> Config:
    """HttpConnectionManager's `local_reply_config`. A gRPC call's text becomes its grpc-message, its status a code."""
    return {
        "mappers": [
            {
                "filter": _all(_REFUSED_PATH, _is_grpc(False)),
                # As the application answers a name that it cannot decode.
                "status_code": 400,
                "body_format_override": _error("Failed to decode model name:%REQ(:PATH)%"),
            },
            {
                "filter": _all(_REFUSED_PATH, _is_grpc(True)),
                # UNIMPLEMENTED, as any other method that there is not (grpc/grpc, doc/http-grpc-status-mapping.md).
                "status_code": 404,
                "body_format_override": {"text_format_source": {"inline_string": "Unknown method %REQ(:PATH)%"}},
            },
            {
                "filter": _is_grpc(False),
                "body_format_override": _error("The request was refused: %RESPONSE_CODE_DETAILS%"),
            },
        ]
    }


# Of envoy_paths' filter: Envoy's own words for it are of access.
_REFUSED_PATH: Config = {
    "status_code_filter": {"comparison": {"op": "EQ", "value": {"default_value": 403, "runtime_key": "unused"}}}
}


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


def _error(message: str) -> Config:
    return {"json_format": {"error": message}}
