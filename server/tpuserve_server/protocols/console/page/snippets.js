// One request as curl, Python and gRPC. The programs print the same outputs as the page.
import { dtype } from "./figures.js";
import { flatten } from "./tensor.js";

export const REQUEST_FILE = "request.json";
// Longer requests are in a file.
const LONGEST_INLINE = 1200;

// `request` has `model`, `version`, `signature`, `method`, `values`, `files`, `body`, `url`, `restAddress`, and `grpc`
// with `address` and `tls`, or null if the server has no such port. Returns objects of `name` and `text`.
export function snippets(request) {
  const isInline = request.body.length <= LONGEST_INLINE;
  const all = [{ name: "curl", text: curl(request, isInline) }, { name: "Python", text: python(request, isInline) }];
  return request.method === "predict" && request.grpc ? [...all, { name: "gRPC", text: grpc(request, isInline) }] : all;
}

export const needsFile = (request) => request.body.length > LONGEST_INLINE;

function curl({ body, url }, isInline) {
  return `curl --data ${isInline ? shellQuoted(body) : `@${REQUEST_FILE}`} ${shellQuoted(url)}`;
}

function python(request, isInline) {
  const { model, version, signature, method, restAddress } = request;
  const [head, values] = valuesOf(request, isInline);
  const name = `signature_name=${literal(signature.name)}`;
  const call = `client.${method}(${literal(model)}, ${
    method === "predict" ? "inputs" : "examples"
  }, version=${version}, ${name})`;
  const lines = method === "predict"
    ? [`    prediction = ${call}`, "print(prediction.to_json())"]
    : [`    print(${call})`];
  return [
    ...head,
    "from tpuserve_client import Client",
    "",
    ...values,
    `with Client(${literal(restAddress)}) as client:`,
    ...lines,
  ].join("\n");
}

function grpc(request, isInline) {
  const { model, version, signature } = request;
  const [head, values] = valuesOf(request, isInline);
  const tensors = signature.inputs.map((spec) =>
    `request.inputs[${literal(spec.name)}].CopyFrom(tf.make_tensor_proto(inputs[${literal(spec.name)}], tf.${
      dtype(spec.dtype).replace("half", "float16").replace(/^float$/, "float32").replace("double", "float64")
    }))`
  );
  return [
    ...head,
    "import grpc",
    "import tensorflow as tf",
    "from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc",
    "",
    ...values,
    "request = predict_pb2.PredictRequest()",
    `request.model_spec.name = ${literal(model)}`,
    `request.model_spec.version.value = ${version}`,
    `request.model_spec.signature_name = ${literal(signature.name)}`,
    ...tensors,
    `with ${channel(request.grpc)} as channel:`,
    "    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)",
    "    response = stub.Predict(request, timeout=30)",
    "for name, output in response.outputs.items():",
    "    print(name, tf.make_ndarray(output).tolist())",
  ].join("\n");
}

function channel({ address, tls }) {
  return tls
    ? `grpc.secure_channel(${literal(address)}, grpc.ssl_channel_credentials())`
    : `grpc.insecure_channel(${literal(address)})`;
}

// Returns the lines of imports, and those that set `inputs` or `examples`.
function valuesOf({ method, values, files }, isInline) {
  const target = method === "predict" ? "inputs" : "examples";
  const withoutFiles = method === "predict"
    ? Object.fromEntries(Object.entries(values).filter(([name]) => !(name in files)))
    : values;
  const imports = new Set();
  const lines = [];
  if (isInline || !Object.keys(withoutFiles).length) {
    lines.push(`${target} = ${literal(withoutFiles)}`);
    if (flatten(Object.values(withoutFiles)).some((each) => each?.b64 !== undefined)) imports.add("import base64");
  } else {
    imports.add("import json");
    lines.push(`${target} = json.load(open(${literal(REQUEST_FILE)}))[${literal(target)}]`);
  }
  for (const [name, file] of Object.entries(files)) {
    imports.add("from pathlib import Path");
    lines.push(`inputs[${literal(name)}] = ${nested(values[name], `Path(${literal(file)}).read_bytes()`)}`);
  }
  return [[...imports].sort(), lines];
}

// Writes the arrays around one value.
const nested = (value, inner) => (Array.isArray(value) ? `[${nested(value[0], inner)}]` : inner);

// Returns Python's literal of a JSON value.
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  if (typeof value.b64 === "string") return `base64.b64decode(${JSON.stringify(value.b64)})`;
  return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each)}`).join(", ")}}`;
}

const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
