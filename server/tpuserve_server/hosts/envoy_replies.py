"""What Envoy answers by itself, in the shape that the REST application gives to errors; gRPC's in gRPC's."""

from typing import Any

Config = dict[str, Any]

# Of envoy_paths' filter; Envoy's own words for it are of access.
_REFUSED_PATH = 403


def local_replies() -> Config:
    """HttpConnectionManager's `local_reply_config`. gRPC's are left as they are: their text becomes grpc-message."""
    return {
        "mappers": [
            {
                "filter": _status_is(_REFUSED_PATH),
                # As the application answers a name that it cannot decode.
                "status_code": 400,
                "body_format_override": _error("Failed to decode model name:%REQ(:PATH)%"),
            },
            {
                "filter": _IS_NOT_GRPC,
                "body_format_override": _error("The request was refused: %RESPONSE_CODE_DETAILS%"),
            },
        ]
    }


_IS_NOT_GRPC: Config = {
    "header_filter": {
        "header": {
            "name": "content-type",
            "string_match": {"prefix": "application/grpc"},
            "invert_match": True,
            "treat_missing_header_as_empty": True,
        }
    }
}


def _status_is(status: int) -> Config:
    return {
        "status_code_filter": {"comparison": {"op": "EQ", "value": {"default_value": status, "runtime_key": "unused"}}}
    }


def _error(message: str) -> Config:
    return {"json_format": {"error": message}}
