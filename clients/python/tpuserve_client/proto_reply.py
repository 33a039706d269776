"""Replies of gRPC methods as protobuf messages."""

from google.protobuf.message import DecodeError, Message

from tpuserve_client.errors import Internal


def parse_into(message: Message, body: bytes) -> None:
    """Fill `message` from serialized bytes. Raises Internal if they are not such a message."""
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise Internal(f"The server's response is not a {message.DESCRIPTOR.name}: {error}") from None
