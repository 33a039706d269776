"""Generated from ensemble_scheduling.proto by tpuserve_formats.messages._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n:tpuserve_formats/messages/_proto/ensemble_scheduling.proto\x12\x08tp'
    b'userve"\xf1\x03\n\x12EnsembleScheduling\x125\n\x04step\x18\x01 \x03(\x0b2!.tpuserve.EnsembleS'
    b'cheduling.StepR\x04step\x12\x15\n\x05input\x18\xe9\x07 \x03(\tR\x05input\x12\x17\n\x06output\x18\xea\x07 \x03(\tR\x06ou'
    b'tput\x1a4\n\nConnection\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\tR\x05value\x1a\xbd\x02\n\x04S'
    b'tep\x12\x1d\n\nmodel_name\x18\x01 \x01(\tR\tmodelName\x12(\n\rmodel_version\x18\x02 \x01(\x03H\x00R\x0cmod'
    b"elVersion\x88\x01\x01\x12D\n\tinput_map\x18\x03 \x03(\x0b2'.tpuserve.EnsembleScheduling.Co"
    b"nnectionR\x08inputMap\x12F\n\noutput_map\x18\x04 \x03(\x0b2'.tpuserve.EnsembleSchedu"
    b'ling.ConnectionR\toutputMap\x12&\n\x0esignature_name\x18\xe9\x07 \x01(\tR\rsignatureNa'
    b'me\x12$\n\rversion_label\x18\xea\x07 \x01(\tR\x0cversionLabelB\x10\n\x0e_model_versionb\x06prot'
    b'o3'
)

EnsembleScheduling = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["EnsembleScheduling"])
