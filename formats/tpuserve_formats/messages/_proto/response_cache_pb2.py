"""Generated from response_cache.proto by tpuserve_formats.messages._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n5tpuserve_formats/messages/_proto/response_cache.proto\x12\x12tensorf'
    b'low.serving"?\n\rResponseCache\x12 \n\tmax_bytes\x18\x01 \x01(\x03H\x00R\x08maxBytes\x88\x01\x01B\x0c'
    b'\n\n_max_bytesb\x06proto3'
)

ResponseCache = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ResponseCache"])
