import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json.tensor import parse_predict_body
from tpuserve_server.wire.json.vertex import with_parameters


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"instances": [1]}', ""),
        (b'{"instances": [1], "signature_name": "s"}', "s"),
        (b'{"instances": [1], "parameters": null}', ""),
        (b'{"instances": [1], "parameters": {}}', ""),
        (b'{"instances": [1], "parameters": {"signature_name": ""}}', ""),
        (b'{"instances": [1], "parameters": {"signature_name": "s"}}', "s"),
        (b'{"instances": [1], "param\\u0065ters": {"signature_name": "s"}}', "s"),
        (b'{"instances": [1], "signature_name": "s", "parameters": {"signature_name": "s"}}', "s"),
        (b'{"instances": [{"parameters": 1}]}', ""),
        (b'{"instances": ["\\n"]}', ""),
    ],
)
def test_the_signature_comes_from_the_body_or_its_parameters(body: bytes, name: str) -> None:
    assert with_parameters(parse_predict_body(body)).signature_name == name


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (b"[]", '\'parameters\' must be an object, such as {"signature_name": "serving_default"}'),
        (b'"s"', '\'parameters\' must be an object, such as {"signature_name": "serving_default"}'),
        (b'{"top_k": 5}', "'parameters' may hold only 'signature_name'; it also holds 'top_k'"),
        (b'{"signature_name": 3}', "'signature_name' in 'parameters' must be a string"),
        (b'{"signature_name": "t"}', "The request names two signatures: 's', and 't' in 'parameters'"),
    ],
)
def test_other_parameters_are_refused_by_name(parameters: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        with_parameters(parse_predict_body(b'{"instances": [1], "signature_name": "s", "parameters": %b}' % parameters))
    assert caught.value.message == message
