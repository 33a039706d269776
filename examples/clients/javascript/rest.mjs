// Call the model `digits` over REST, with Node's own fetch: node rest.mjs [http://localhost:8501]
const server = process.argv[2] ?? "http://localhost:8501";
const key = process.env.TPUSERVE_API_KEY;
const timeoutMs = 10_000;

/** Predict several images of 8 x 8 x 1 numbers in one request. Returns one list of probabilities for each image. */
async function predict(images) {
  const response = await fetch(`${server}/v1/models/digits:predict`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "x-tpuserve-timeout-ms": String(timeoutMs), // the server stops at the same time
      ...(key && { authorization: `Bearer ${key}` }),
    },
    body: JSON.stringify({ instances: images.map((image) => ({ image })) }),
    signal: AbortSignal.timeout(timeoutMs),
  });
  const answer = await response.json();
  if (!response.ok) {
    throw Object.assign(new Error(answer.error), { status: response.status });
  }
  return answer.predictions;
}

// An image is a list of rows, a row a list of pixels, a pixel a list of one number from 0 to 1.
const makeImage = (pixel) =>
  Array.from({ length: 8 }, (_, y) => Array.from({ length: 8 }, (_, x) => [pixel(y, x)]));

try {
  const grey = makeImage(() => 0.5);
  const gradient = makeImage((y, x) => (8 * y + x) / 63);
  const predictions = await predict([grey, gradient]);
  predictions.forEach((probabilities, index) => {
    const digit = probabilities.indexOf(Math.max(...probabilities));
    console.log(`image ${index}: digit ${digit}, probability ${probabilities[digit].toFixed(4)}`);
  });
} catch (error) {
  process.exitCode = 1;
  if (error.status === 429 || error.status === 503) {
    console.error(`${error.status}, try again later: ${error.message}`);
  } else if (error.status) {
    console.error(`${error.status}: ${error.message}`);
  } else {
    // TimeoutError, or a TypeError whose cause is the error of the connection.
    console.error(`no answer: ${error.cause?.message || error.cause?.code || error.message}`);
  }
}
