"""Requests that carry tf.Examples: ClassificationRequest, RegressionRequest and MultiInferenceRequest.

The Examples stay serialized, because models take serialized ones. Parsing and encoding would dominate the cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from tpuserve_formats.messages.official import InferenceTask as InferenceTaskProto
from tpuserve_formats.messages.official import ModelSpec as ModelSpecProto
from tpuserve_formats.messages.pool import add_file
from tpuserve_formats.tensor_proto import MAX_REPEATED_BYTES
from tpuserve_formats.varint import varint
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, Array, ModelSpec, ServableId
from tpuserve_server.wire.model_messages import decode_model_spec, encode_model_spec

_PACKAGE = "tpuserve.serialized"


@dataclass(frozen=True, slots=True)
class ExampleRequest:
    """A classification or regression request. `examples` decodes its Examples on demand."""

    spec: ModelSpec
    _input: Any  # the SerializedInput message, whose class is made below

    @property
    def signature_name(self) -> str:
        """The requested signature, or the default one."""
        return self.spec.signature_name or DEFAULT_SIGNATURE_NAME

    def examples(self, max_repeated_bytes: int = MAX_REPEATED_BYTES) -> Array:
        """Decode the Examples; see `decode_examples`."""
        return decode_examples(self._input, max_repeated_bytes)


@dataclass(frozen=True, slots=True)
class InferenceTask:
    """One task of a MultiInferenceRequest."""

    spec: ModelSpec
    method_name: str

    @property
    def signature_name(self) -> str:
        """The requested signature, or the default one."""
        return self.spec.signature_name or DEFAULT_SIGNATURE_NAME


@dataclass(frozen=True, slots=True)
class MultiInferenceRequest:
    """Several signatures of one model over the same Examples."""

    tasks: Sequence[InferenceTask]
    _input: Any  # the SerializedInput message, whose class is made below

    def examples(self, max_repeated_bytes: int = MAX_REPEATED_BYTES) -> Array:
        """Decode the Examples; see `decode_examples`."""
        return decode_examples(self._input, max_repeated_bytes)


def parse_example_request(body: bytes, message_name: str) -> ExampleRequest:
    """Parse `body`, a `message_name`. Raises InvalidArgument if it is malformed or names no model."""
    message = _parse(_REQUEST, body, message_name)
    if not message.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    return ExampleRequest(_named(decode_model_spec(message.model_spec)), message.input)


def parse_recorded_request(body: bytes, message_name: str) -> ExampleRequest:
    """Parse a request as `parse_example_request` does, but accept one without a model name."""
    message = _parse(_REQUEST, body, message_name)
    return ExampleRequest(decode_model_spec(message.model_spec), message.input)


def parse_multi_inference_request(body: bytes) -> MultiInferenceRequest:
    """Parse a MultiInferenceRequest. Raises InvalidArgument if it is malformed or its first task names no model.

    The first task's spec selects the model (multi_inference_helper.cc).
    """
    request = parse_recorded_multi_inference(body)
    _named(request.tasks[0].spec if request.tasks else ModelSpec(""))
    return request


def parse_recorded_multi_inference(body: bytes) -> MultiInferenceRequest:
    """Parse a request as `parse_multi_inference_request` does, but accept one without a model name."""
    message = _parse(_MULTI_REQUEST, body, "MultiInferenceRequest")
    tasks = [InferenceTask(decode_model_spec(task.model_spec), task.method_name) for task in message.tasks]
    return MultiInferenceRequest(tasks, message.input)


def encode_example_request(servable: ServableId, signature_name: str, examples: Array) -> bytes:
    """Serialize a ClassificationRequest or RegressionRequest for this version and signature; both are identical."""
    listed = _REQUEST(input={"example_list": {"examples": examples.tolist()}})
    spec = encode_model_spec(servable, signature_name)
    # model_spec = 1
    return b"".join((b"\x0a", varint(len(spec)), spec, listed.SerializeToString()))


def decode_examples(serialized_input: Any, max_repeated_bytes: int) -> Array:  # noqa: ANN401 (a message whose class is made below)
    """Return a [n] object array of serialized Examples, each with the context, if any, in front of it.

    Concatenated messages merge: an Example's feature replaces the context's feature of the same name
    (servables/tensorflow/util.cc, InputToSerializedExampleTensor).

    Raises:
        InvalidArgument: there are no Examples, or the copies of the context would exceed `max_repeated_bytes`.
    """
    kind = serialized_input.WhichOneof("kind")
    examples: Sequence[bytes] = getattr(serialized_input, kind).examples if kind else ()
    if not examples:
        raise InvalidArgument("Input is empty.")
    if kind == "example_list_with_context":
        return with_context(serialized_input.example_list_with_context.context, examples, max_repeated_bytes)
    return example_array(examples)


def with_context(context: bytes, examples: Sequence[bytes], max_repeated_bytes: int) -> Array:
    """Return a [n] object array of the examples, each with `context` in front of it.

    Raises InvalidArgument if the copies of `context` would exceed `max_repeated_bytes`. The limit is necessary because
    an empty example takes only two bytes, so a short message could cause many copies.
    """
    if len(context) * (len(examples) - 1) > max_repeated_bytes:
        raise InvalidArgument(
            f"A context of {len(context)} bytes is too large for {len(examples)} examples: its copies would take more "
            f"than {max_repeated_bytes} bytes"
        )
    return example_array([context + example for example in examples])


def example_array(examples: Sequence[bytes]) -> Array:
    """Return a [n] object array of the examples."""
    array = np.empty(len(examples), np.object_)
    array[:] = examples
    return array


def _named(spec: ModelSpec) -> ModelSpec:
    if not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return spec


def _parse(message_class: type[Message], body: bytes, name: str) -> Any:  # noqa: ANN401 (see _message_classes)
    try:
        return message_class.FromString(body)
    except DecodeError:
        raise InvalidArgument(f"Malformed {name}") from None


def _message_classes() -> tuple[type[Message], type[Message]]:
    """Create request classes whose Examples are bytes fields, which have the same wire format.

    Upstream's apis/internal/serialized_input.proto does the same, but the pip package omits it.
    """
    file = FileDescriptorProto(name="tpuserve/serialized_input.proto", package=_PACKAGE, syntax="proto3")
    file.dependency[:] = [ModelSpecProto.DESCRIPTOR.file.name, InferenceTaskProto.DESCRIPTOR.file.name]
    _add(file, "ExampleList", _field("examples", 1, repeated=True))
    _add(file, "ExampleListWithContext", _field("examples", 1, repeated=True), _field("context", 2))
    lists = [
        _field("example_list", 1, f"{_PACKAGE}.ExampleList", oneof=True),
        _field("example_list_with_context", 2, f"{_PACKAGE}.ExampleListWithContext", oneof=True),
    ]
    _add(file, "Input", *lists)
    file.message_type[-1].oneof_decl.add(name="kind")
    in_field = _field("input", 2, f"{_PACKAGE}.Input")
    _add(file, "Request", _field("model_spec", 1, ModelSpecProto.DESCRIPTOR.full_name), in_field)
    task = InferenceTaskProto.DESCRIPTOR.full_name
    _add(file, "MultiRequest", _field("tasks", 1, task, repeated=True), in_field)
    added = add_file(file).message_types_by_name
    return (
        message_factory.GetMessageClass(added["Request"]),
        message_factory.GetMessageClass(added["MultiRequest"]),
    )


def _add(file: FileDescriptorProto, name: str, *fields: FieldDescriptorProto) -> None:
    file.message_type.add(name=name, field=fields)


def _field(
    name: str, number: int, message: str = "", *, repeated: bool = False, oneof: bool = False
) -> FieldDescriptorProto:
    """Create a field of type `message`, or of bytes if `message` is empty."""
    field = FieldDescriptorProto(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_MESSAGE if message else FieldDescriptorProto.TYPE_BYTES,
    )
    if message:
        field.type_name = f".{message}"
    if oneof:
        field.oneof_index = 0
    return field


_REQUEST, _MULTI_REQUEST = _message_classes()
