// Call the model `digits` over gRPC with the Open Inference Protocol: java Grpc [localhost:8500]
import com.google.protobuf.ByteString;
import inference.GRPCInferenceServiceGrpc;
import inference.GRPCInferenceServiceGrpc.GRPCInferenceServiceBlockingStub;
import inference.GrpcPredictV2.ModelInferRequest;
import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import java.util.concurrent.TimeUnit;

public class Grpc {
  /** Predict several images of 64 floats in one request. Returns the probabilities, one image after the other. */
  static float[] predict(GRPCInferenceServiceBlockingStub stub, float[] images) {
    var raw = ByteBuffer.allocate(4 * images.length).order(ByteOrder.LITTLE_ENDIAN);
    raw.asFloatBuffer().put(images);
    var input =
        ModelInferRequest.InferInputTensor.newBuilder()
            .setName("image")
            .setDatatype("FP32")
            .addAllShape(List.of(images.length / 64L, 8L, 8L, 1L));
    var request =
        ModelInferRequest.newBuilder()
            .setModelName("digits")
            .addInputs(input)
            .addRawInputContents(ByteString.copyFrom(raw))
            .build();
    var response = stub.withDeadlineAfter(10, TimeUnit.SECONDS).modelInfer(request);
    var output = response.getRawOutputContents(0).asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    var values = new float[output.remaining() / 4];
    output.asFloatBuffer().get(values);
    return values;
  }

  static ChannelCredentials credentials() throws IOException {
    String ca = System.getenv("TPUSERVE_CA"); // a file with the certificate authority of the server
    return ca == null
        ? InsecureChannelCredentials.create()
        : TlsChannelCredentials.newBuilder().trustManager(new File(ca)).build();
  }

  public static void main(String[] arguments) throws IOException {
    var server = arguments.length > 0 ? arguments[0] : "localhost:8500";
    // One channel has one connection, for any number of threads. Keep it for the whole program.
    ManagedChannel channel = io.grpc.Grpc.newChannelBuilder(server, credentials()).build();
    var stub = GRPCInferenceServiceGrpc.newBlockingStub(channel);
    String key = System.getenv("TPUSERVE_API_KEY");
    if (key != null) {
      var headers = new Metadata();
      headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + key);
      stub = stub.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    }
    var images = new float[2 * 64]; // a grey image, then a gradient
    for (int pixel = 0; pixel < 64; pixel++) {
      images[pixel] = 0.5f;
      images[64 + pixel] = pixel / 63f;
    }
    try {
      var probabilities = predict(stub, images);
      int width = probabilities.length / 2;
      for (int image = 0; image < 2; image++) {
        int best = image * width;
        for (int candidate = best; candidate < (image + 1) * width; candidate++) {
          best = probabilities[candidate] > probabilities[best] ? candidate : best;
        }
        System.out.printf("image %d: digit %d, probability %.4f%n", image, best - image * width, probabilities[best]);
      }
    } catch (StatusRuntimeException error) {
      Status status = error.getStatus();
      boolean isTemporary =
          status.getCode() == Status.Code.UNAVAILABLE || status.getCode() == Status.Code.RESOURCE_EXHAUSTED;
      System.err.println(status.getCode() + (isTemporary ? ", try again later: " : ": ") + status.getDescription());
      System.exit(1);
    } finally {
      channel.shutdown();
    }
  }
}
