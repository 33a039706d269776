"""Calls of the echo application's methods over bytes. grpcio's stubs type no call that has no serializer: hence Any."""

from typing import Any, TypeAlias

import grpc
import grpc.aio

# As many bytes as a test likes.
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

AnyChannel: TypeAlias = grpc.Channel | grpc.aio.Channel


def unary(channel: AnyChannel, method: str) -> Any:  # noqa: ANN401  # As above.
    return channel.unary_unary(f"/echo.Echo/{method}")


def server_stream(channel: AnyChannel, method: str) -> Any:  # noqa: ANN401  # As above.
    return channel.unary_stream(f"/echo.Echo/{method}")


def two_way_stream(channel: AnyChannel, method: str) -> Any:  # noqa: ANN401  # As above.
    return channel.stream_stream(f"/echo.Echo/{method}")
