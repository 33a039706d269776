// Call the model `digits` over gRPC with the Open Inference Protocol: node grpc.mjs [localhost:8500]
import { readFileSync } from "node:fs";
import { credentials, loadPackageDefinition, Metadata, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const server = process.argv[2] ?? "localhost:8500";
const key = process.env.TPUSERVE_API_KEY;
const ca = process.env.TPUSERVE_CA; // a file with the certificate authority of the server

const { inference } = loadPackageDefinition(loadSync("protos/grpc_predict_v2.proto", { keepCase: true }));
const channel = ca ? credentials.createSsl(readFileSync(ca)) : credentials.createInsecure();
// One client has one connection, for any number of calls at the same time.
const client = new inference.GRPCInferenceService(server, channel);
const metadata = new Metadata();
if (key) {
  metadata.set("authorization", `Bearer ${key}`);
}

/** Predict several images, a Float32Array of count x 8 x 8 x 1. Resolves to one Float32Array for each image. */
function predict(images, count) {
  const request = {
    model_name: "digits",
    inputs: [{ name: "image", datatype: "FP32", shape: [count, 8, 8, 1] }],
    raw_input_contents: [Buffer.from(images.buffer, images.byteOffset, images.byteLength)],
  };
  return new Promise((resolve, reject) => {
    client.ModelInfer(request, metadata, { deadline: Date.now() + 10_000 }, (error, response) => {
      if (error) {
        return reject(error);
      }
      // Copy the bytes, because a Float32Array needs an aligned start.
      const values = new Float32Array(new Uint8Array(response.raw_output_contents[0]).buffer);
      const width = values.length / count;
      resolve(Array.from({ length: count }, (_, index) => values.subarray(index * width, (index + 1) * width)));
    });
  });
}

try {
  const images = new Float32Array(2 * 64);
  images.fill(0.5, 0, 64);
  for (let pixel = 0; pixel < 64; pixel++) {
    images[64 + pixel] = pixel / 63;
  }
  const predictions = await predict(images, 2);
  predictions.forEach((probabilities, index) => {
    const digit = probabilities.indexOf(Math.max(...probabilities));
    console.log(`image ${index}: digit ${digit}, probability ${probabilities[digit].toFixed(4)}`);
  });
} catch (error) {
  process.exitCode = 1;
  const again = [status.UNAVAILABLE, status.RESOURCE_EXHAUSTED].includes(error.code) ? ", try again later" : "";
  console.error(`${status[error.code] ?? error.name}${again}: ${error.details ?? error.message}`);
} finally {
  client.close();
}
