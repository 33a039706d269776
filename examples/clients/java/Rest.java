// Call the model `digits` over REST, with the JDK and Gson: java Rest [http://localhost:8501]
import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Map;

public class Rest {
  static final Duration TIMEOUT = Duration.ofSeconds(10);
  // One client keeps its connections for the whole program.
  static final HttpClient CLIENT = HttpClient.newBuilder().connectTimeout(TIMEOUT).build();
  static final Gson GSON = new Gson();

  /** An answer of the server other than 200. */
  static class Refused extends IOException {
    final int status;

    Refused(int status, String message) {
      super(status + ": " + message);
      this.status = status;
    }
  }

  /** Predict several images of 8 x 8 x 1 numbers in one request. Returns the probabilities of each image. */
  static float[][] predict(String server, float[][][]... images) throws IOException, InterruptedException {
    var instances = List.of(images).stream().map(image -> Map.of("image", image)).toList();
    var request =
        HttpRequest.newBuilder(URI.create(server + "/v1/models/digits:predict"))
            .timeout(TIMEOUT)
            .header("content-type", "application/json")
            .header("x-tpuserve-timeout-ms", String.valueOf(TIMEOUT.toMillis())) // the server stops at the same time
            .POST(HttpRequest.BodyPublishers.ofString(GSON.toJson(Map.of("instances", instances))));
    String key = System.getenv("TPUSERVE_API_KEY");
    if (key != null) {
      request.header("authorization", "Bearer " + key);
    }
    var response = CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    var answer = GSON.fromJson(response.body(), JsonObject.class);
    if (response.statusCode() != 200) {
      throw new Refused(response.statusCode(), answer.get("error").getAsString());
    }
    return GSON.fromJson(answer.get("predictions"), float[][].class);
  }

  public static void main(String[] arguments) throws InterruptedException {
    var server = arguments.length > 0 ? arguments[0] : "http://localhost:8501";
    var grey = new float[8][8][1];
    var gradient = new float[8][8][1];
    for (int pixel = 0; pixel < 64; pixel++) {
      grey[pixel / 8][pixel % 8][0] = 0.5f;
      gradient[pixel / 8][pixel % 8][0] = pixel / 63f;
    }
    try {
      var predictions = predict(server, grey, gradient);
      for (int image = 0; image < predictions.length; image++) {
        var probabilities = predictions[image];
        int digit = 0;
        for (int candidate = 1; candidate < probabilities.length; candidate++) {
          digit = probabilities[candidate] > probabilities[digit] ? candidate : digit;
        }
        System.out.printf("image %d: digit %d, probability %.4f%n", image, digit, probabilities[digit]);
      }
    } catch (Refused refused) {
      boolean isTemporary = refused.status == 429 || refused.status == 503;
      System.err.println((isTemporary ? "try again later: " : "") + refused.getMessage());
      System.exit(1);
    } catch (IOException error) { // no connection, or HttpTimeoutException
      System.err.println("no answer: " + error);
      System.exit(1);
    }
  }
}
