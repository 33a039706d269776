from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnsembleScheduling(_message.Message):
    __slots__ = ("step", "input", "output")
    class Connection(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class Step(_message.Message):
        __slots__ = ("model_name", "model_version", "input_map", "output_map", "signature_name", "version_label")
        MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
        MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
        INPUT_MAP_FIELD_NUMBER: _ClassVar[int]
        OUTPUT_MAP_FIELD_NUMBER: _ClassVar[int]
        SIGNATURE_NAME_FIELD_NUMBER: _ClassVar[int]
        VERSION_LABEL_FIELD_NUMBER: _ClassVar[int]
        model_name: str
        model_version: int
        input_map: _containers.RepeatedCompositeFieldContainer[EnsembleScheduling.Connection]
        output_map: _containers.RepeatedCompositeFieldContainer[EnsembleScheduling.Connection]
        signature_name: str
        version_label: str
        def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[int] = ..., input_map: _Optional[_Iterable[_Union[EnsembleScheduling.Connection, _Mapping]]] = ..., output_map: _Optional[_Iterable[_Union[EnsembleScheduling.Connection, _Mapping]]] = ..., signature_name: _Optional[str] = ..., version_label: _Optional[str] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    step: _containers.RepeatedCompositeFieldContainer[EnsembleScheduling.Step]
    input: _containers.RepeatedScalarFieldContainer[str]
    output: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[_Iterable[_Union[EnsembleScheduling.Step, _Mapping]]] = ..., input: _Optional[_Iterable[str]] = ..., output: _Optional[_Iterable[str]] = ...) -> None: ...
