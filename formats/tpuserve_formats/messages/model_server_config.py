"""ModelServerConfig with more fields of one model: batching, a response cache, an ensemble's steps, when it loads.

This module copies the upstream message into a separate descriptor pool, because a pool holds one definition of each
name. It parses the messages of upstream clients, and upstream messages preserve the fields as unknown fields.
"""

import hashlib
import json
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from tpuserve_formats.messages import official
from tpuserve_formats.messages._proto import batching_parameters_pb2, ensemble_scheduling_pb2, response_cache_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.message import Message

# Fields of ModelConfig. Their numbers are far above those that upstream may assign.
BATCHING_PARAMETERS = "batching_parameters"
BATCHING_PARAMETERS_NUMBER = 1001
RESPONSE_CACHE = "response_cache"
RESPONSE_CACHE_NUMBER = 1002
ENSEMBLE_SCHEDULING = "ensemble_scheduling"
ENSEMBLE_SCHEDULING_NUMBER = 1003
# A string: `always` or `on_demand`.
LOAD_POLICY = "load_policy"
LOAD_POLICY_NUMBER = 1004

_FIELDS = (
    (BATCHING_PARAMETERS, BATCHING_PARAMETERS_NUMBER, batching_parameters_pb2.BatchingParameters.DESCRIPTOR),
    (RESPONSE_CACHE, RESPONSE_CACHE_NUMBER, response_cache_pb2.ResponseCache.DESCRIPTOR),
    (ENSEMBLE_SCHEDULING, ENSEMBLE_SCHEDULING_NUMBER, ensemble_scheduling_pb2.EnsembleScheduling.DESCRIPTOR),
)


def _extended() -> type[Any]:
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for file in (*(message.file for _, _, message in _FIELDS), official.ModelServerConfig.DESCRIPTOR.file):
        _add(file, pool, added)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.serving.ModelServerConfig"))


def _add(file: "FileDescriptor", pool: descriptor_pool.DescriptorPool, added: set[str]) -> None:
    """Add a file to the pool after its dependencies."""
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(dependency, pool, added)
    copy = FileDescriptorProto()
    file.CopyToProto(copy)
    if file.name == official.ModelServerConfig.DESCRIPTOR.file.name:
        _extend(copy)
    pool.AddSerializedFile(copy.SerializeToString())


def _extend(file: FileDescriptorProto) -> None:
    [model] = [message for message in file.message_type if message.name == "ModelConfig"]
    for name, number, message in _FIELDS:
        file.dependency.append(message.file.name)
        model.field.add(
            name=name,
            number=number,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_MESSAGE,
            type_name=f".{message.full_name}",
        )
    model.field.add(
        name=LOAD_POLICY,
        number=LOAD_POLICY_NUMBER,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_STRING,
    )


# The class exists only at run time, so it has no static type.
ModelServerConfig: type[Any] = _extended()


def configuration_sha256(config: "Message") -> str:
    """Return the SHA-256 of what a ModelServerConfig means, in hexadecimal. Both a server and its clients compute it.

    Comments, the form of the text, and the order of fields, labels and models do not change it. Fields without a
    value and fields with the default value are equal. `config` is of the class in this module.
    """
    document = json_format.MessageToDict(config, preserving_proto_field_name=True)
    models = document.get("model_config_list", {}).get("config", [])
    models.sort(key=lambda model: model.get("name", ""))
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
