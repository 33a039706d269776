// Call the model `digits` over REST: dotnet run [http://localhost:8501]
using System.Net;
using System.Net.Http.Headers;
using System.Net.Http.Json;

var server = args.Length > 0 ? args[0] : "http://localhost:8501";
var timeout = TimeSpan.FromSeconds(10);
// One client keeps its connections for the whole program.
using var client = new HttpClient { BaseAddress = new Uri(server), Timeout = timeout };
if (Environment.GetEnvironmentVariable("TPUSERVE_API_KEY") is { } key)
{
    client.DefaultRequestHeaders.Authorization = new AuthenticationHeaderValue("Bearer", key);
}

// An image is 8 x 8 x 1 numbers from 0 to 1. Jagged arrays become nested lists in JSON.
static float[][][] Image(Func<int, float> pixel) =>
    Enumerable.Range(0, 8).Select(y => Enumerable.Range(0, 8).Select(x => new[] { pixel(8 * y + x) }).ToArray()).ToArray();

float[][][][] images = [Image(_ => 0.5f), Image(pixel => pixel / 63f)];
using var request = new HttpRequestMessage(HttpMethod.Post, "/v1/models/digits:predict")
{
    Content = JsonContent.Create(new { instances = images.Select(image => new { image }) }),
};
// The server stops at the same time.
request.Headers.Add("x-tpuserve-timeout-ms", timeout.TotalMilliseconds.ToString("F0"));
try
{
    using var response = await client.SendAsync(request);
    var answer = await response.Content.ReadFromJsonAsync<Answer>();
    if (!response.IsSuccessStatusCode)
    {
        var again = response.StatusCode is HttpStatusCode.TooManyRequests or HttpStatusCode.ServiceUnavailable;
        Console.Error.WriteLine($"{(int)response.StatusCode}{(again ? ", try again later" : "")}: {answer?.Error}");
        return 1;
    }
    foreach (var (probabilities, index) in answer!.Predictions!.Select((row, index) => (row, index)))
    {
        var digit = Array.IndexOf(probabilities, probabilities.Max());
        Console.WriteLine($"image {index}: digit {digit}, probability {probabilities[digit]:F4}");
    }
    return 0;
}
catch (Exception error) when (error is HttpRequestException or TaskCanceledException)
{
    Console.Error.WriteLine($"no answer: {error.Message}");
    return 1;
}

record Answer(float[][]? Predictions, string? Error);
