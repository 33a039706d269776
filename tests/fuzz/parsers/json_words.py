"""Words of JSON requests that the fuzzer inserts."""

JSON_WORDS = (
    b"[", b"]", b"{", b"}", b",", b":", b'""', b"[]", b"{}", b"[[]]", b"null", b"true", b"false", b"NaN", b"-Infinity",
    b"1e400", b"-0.0", b"9223372036854775808", b"18446744073709551616", b"1e-400", b"\\ud800", b"\\ud83d\\ude00",
    b"\\u0000", b'\\"', b"\\\\", b"\xff", b"\xef\xbb\xbf",
)  # fmt: skip
PREDICT_WORDS = (
    *JSON_WORDS, b'"instances":', b'"inputs":', b'"signature_name":', b'"x":', b'"y":', b'{"b64":"YQ=="}',
    b'"parameters":', b'"serving_default"', b'{"x":', b'"x_splits":',
)  # fmt: skip
EXAMPLE_WORDS = (*JSON_WORDS, b'"examples":', b'"context":', b'"signature_name":', b'{"b64":"YQ"}', b'"a":')
INFER_WORDS = (
    *JSON_WORDS, b'"inputs":', b'"outputs":', b'"name":', b'"shape":', b'"datatype":', b'"data":', b'"parameters":',
    b'"binary_data_size":', b'"binary_data":', b'"id":', b'"FP32"', b'"BYTES"', b'"INT64"', b'"BOOL"', b'"BF16"',
    b'"classification":', b'"priority":', b'"timeout":', b'"sequence_id":', b'"shared_memory_region":',
)  # fmt: skip
REPLY_WORDS = (
    *INFER_WORDS, b'"predictions":', b'"results":', b'"model_version_status":', b'"version":', b'"state":',
    b'"status":', b'"error_code":', b'"model_spec":', b'"metadata":', b'"signature_def":', b'"tensor_shape":',
    b'"dim":', b'"size":', b'"dtype":', b'"DT_FLOAT"', b'"versions":', b'"ready":', b'"error":',
)  # fmt: skip
