"""Generated from ssl_config.proto by tpuserve_formats.messages._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n1tpuserve_formats/messages/_proto/ssl_config.proto\x12\x12tensorflow.'
    b'serving"\x8d\x01\n\tSSLConfig\x12\x1d\n\nserver_key\x18\x01 \x01(\tR\tserverKey\x12\x1f\n\x0bserver_c'
    b'ert\x18\x02 \x01(\tR\nserverCert\x12\x1b\n\tcustom_ca\x18\x03 \x01(\tR\x08customCa\x12#\n\rclient_ver'
    b'ify\x18\x04 \x01(\x08R\x0cclientVerifyb\x06proto3'
)

SSLConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["SSLConfig"])
