"""Generated from monitoring_config.proto by tpuserve_formats.messages._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n8tpuserve_formats/messages/_proto/monitoring_config.proto\x12\x12tens'
    b'orflow.serving">\n\x10PrometheusConfig\x12\x16\n\x06enable\x18\x01 \x01(\x08R\x06enable\x12\x12\n\x04pa'
    b'th\x18\x02 \x01(\tR\x04path"e\n\x10MonitoringConfig\x12Q\n\x11prometheus_config\x18\x01 \x01(\x0b2$.'
    b'tensorflow.serving.PrometheusConfigR\x10prometheusConfigb\x06proto3'
)

PrometheusConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["PrometheusConfig"])
MonitoringConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["MonitoringConfig"])
