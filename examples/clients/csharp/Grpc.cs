// Call the model `digits` over gRPC with the Open Inference Protocol: dotnet run [http://localhost:8500]
using System.Runtime.InteropServices;
using Google.Protobuf;
using Grpc.Core;
using Grpc.Net.Client;
using Inference;

var server = args.Length > 0 ? args[0] : "http://localhost:8500"; // https:// for TLS
// One channel has one connection, for any number of calls at the same time. Keep it for the whole program.
using var channel = GrpcChannel.ForAddress(server);
var client = new GRPCInferenceService.GRPCInferenceServiceClient(channel);
var headers = new Metadata();
if (Environment.GetEnvironmentVariable("TPUSERVE_API_KEY") is { } key)
{
    headers.Add("authorization", $"Bearer {key}");
}

var images = new float[2 * 64]; // a grey image, then a gradient
for (var pixel = 0; pixel < 64; pixel++)
{
    images[pixel] = 0.5f;
    images[64 + pixel] = pixel / 63f;
}
var input = new ModelInferRequest.Types.InferInputTensor { Name = "image", Datatype = "FP32", Shape = { 2, 8, 8, 1 } };
var request = new ModelInferRequest
{
    ModelName = "digits",
    Inputs = { input },
    RawInputContents = { ByteString.CopyFrom(MemoryMarshal.AsBytes(images.AsSpan())) },
};
try
{
    var response = await client.ModelInferAsync(request, headers, deadline: DateTime.UtcNow.AddSeconds(10));
    var values = MemoryMarshal.Cast<byte, float>(response.RawOutputContents[0].Span).ToArray();
    foreach (var (probabilities, index) in values.Chunk(values.Length / 2).Select((row, index) => (row, index)))
    {
        var digit = Array.IndexOf(probabilities, probabilities.Max());
        Console.WriteLine($"image {index}: digit {digit}, probability {probabilities[digit]:F4}");
    }
    return 0;
}
catch (RpcException error)
{
    var again = error.StatusCode is StatusCode.Unavailable or StatusCode.ResourceExhausted ? ", try again later" : "";
    Console.Error.WriteLine($"{error.StatusCode}{again}: {error.Status.Detail}");
    return 1;
}
