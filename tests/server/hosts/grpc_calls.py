"""Calls of the echo application's methods over bytes.

They use Any because grpcio's stubs have no types for calls without a serializer.
"""

from typing import Any, TypeAlias

import grpc
import grpc.aio

# No limit on message sizes.
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

AnyChannel: TypeAlias = grpc.Channel | grpc.aio.Channel


def unary(channel: AnyChannel, method: str) -> Any:  # noqa: ANN401  # As above.
    return channel.unary_unary(f"/echo.Echo/{method}")


def server_stream(channel: AnyChannel, method: str) -> Any:  # noqa: ANN401  # As above.
    return channel.unary_stream(f"/echo.Echo/{method}")


def two_way_stream(channel: AnyChannel, method: str) -> Any:  # noqa: ANN401  # As above.
    return channel.stream_stream(f"/echo.Echo/{method}")
