// Call the model `digits` over gRPC with the Open Inference Protocol: ./digits [localhost:8500]
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "grpc_predict_v2.grpc.pb.h"

using inference::GRPCInferenceService;

// Send several images of 64 floats in one request. Fills `probabilities`, one row after the other.
grpc::Status Predict(GRPCInferenceService::Stub& stub, const std::vector<float>& images, std::vector<float>& probabilities) {
  inference::ModelInferRequest request;
  request.set_model_name("digits");
  auto* input = request.add_inputs();
  input->set_name("image");
  input->set_datatype("FP32");
  for (int64_t dimension : {static_cast<int64_t>(images.size() / 64), int64_t{8}, int64_t{8}, int64_t{1}}) {
    input->add_shape(dimension);
  }
  request.add_raw_input_contents(images.data(), images.size() * sizeof(float));

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (const char* key = std::getenv("TPUSERVE_API_KEY")) {
    context.AddMetadata("authorization", std::string("Bearer ") + key);
  }
  inference::ModelInferResponse response;
  grpc::Status status = stub.ModelInfer(&context, request, &response);
  if (status.ok()) {
    const std::string& raw = response.raw_output_contents(0);
    probabilities.resize(raw.size() / sizeof(float));
    std::memcpy(probabilities.data(), raw.data(), raw.size());
  }
  return status;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials() {
  const char* ca = std::getenv("TPUSERVE_CA");  // a file with the certificate authority of the server
  if (ca == nullptr) {
    return grpc::InsecureChannelCredentials();
  }
  std::stringstream pem;
  pem << std::ifstream(ca).rdbuf();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = pem.str();
  return grpc::SslCredentials(options);
}

int main(int argc, char** argv) {
  // One channel has one connection, for any number of threads. Keep it for the whole program.
  auto channel = grpc::CreateChannel(argc > 1 ? argv[1] : "localhost:8500", Credentials());
  GRPCInferenceService::Stub stub(channel);

  std::vector<float> images(2 * 64, 0.5f);  // a grey image, then a gradient
  for (int pixel = 0; pixel < 64; ++pixel) {
    images[64 + pixel] = pixel / 63.0f;
  }
  std::vector<float> probabilities;
  grpc::Status status = Predict(stub, images, probabilities);
  if (!status.ok()) {
    bool is_temporary =
        status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    std::fprintf(stderr, "status %d%s: %s\n", status.error_code(), is_temporary ? ", try again later" : "",
                 status.error_message().c_str());
    return 1;
  }
  const size_t width = probabilities.size() / 2;
  for (size_t image = 0; image < 2; ++image) {
    auto row = probabilities.begin() + image * width;
    auto best = std::max_element(row, row + width);
    std::printf("image %zu: digit %td, probability %.4f\n", image, best - row, *best);
  }
}
