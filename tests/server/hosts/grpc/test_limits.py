from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.grpc.limits import channel_arguments

METADATA = ("grpc.max_metadata_size", "grpc.absolute_max_metadata_size")


def test_limits_come_from_the_options() -> None:
    arguments = channel_arguments(HostOptions(max_message_bytes=1000, header_timeout_s=2.5))
    assert arguments["grpc.max_receive_message_length"] == 1000
    assert arguments["grpc.server_handshake_timeout_ms"] == 2500
    assert [arguments[name] for name in METADATA] == [61_440, 61_440]


def test_the_operators_arguments_have_precedence() -> None:
    arguments = channel_arguments(HostOptions(grpc_arguments=(("grpc.max_concurrent_streams", 7),)))
    assert arguments["grpc.max_concurrent_streams"] == 7


def test_a_given_limit_of_metadata_leaves_the_other_one_to_grpc() -> None:
    arguments = channel_arguments(HostOptions(grpc_arguments=((METADATA[0], 100_000),)))
    assert arguments[METADATA[0]] == 100_000
    assert METADATA[1] not in arguments
