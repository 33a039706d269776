// Call the model `digits` over gRPC with the Open Inference Protocol: go run ./grpc [localhost:8500]
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"digits/inference"
)

// predict sends several images, pixel after pixel, in one request, and returns the probabilities of each image.
func predict(client inference.GRPCInferenceServiceClient, images []float32) ([][]float32, error) {
	count := len(images) / 64
	var raw bytes.Buffer
	if err := binary.Write(&raw, binary.LittleEndian, images); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if key := os.Getenv("TPUSERVE_API_KEY"); key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	response, err := client.ModelInfer(ctx, &inference.ModelInferRequest{
		ModelName: "digits",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "image", Datatype: "FP32", Shape: []int64{int64(count), 8, 8, 1}},
		},
		RawInputContents: [][]byte{raw.Bytes()},
	})
	if err != nil {
		return nil, err
	}
	values := make([]float32, len(response.RawOutputContents[0])/4)
	if err := binary.Read(bytes.NewReader(response.RawOutputContents[0]), binary.LittleEndian, values); err != nil {
		return nil, err
	}
	width := len(values) / count
	predictions := make([][]float32, count)
	for i := range predictions {
		predictions[i] = values[i*width : (i+1)*width]
	}
	return predictions, nil
}

// connect returns a connection for the whole program. Calls from several goroutines share it.
func connect(server string) (*grpc.ClientConn, error) {
	security := insecure.NewCredentials()
	if ca := os.Getenv("TPUSERVE_CA"); ca != "" { // a file with the certificate authority of the server
		var err error
		if security, err = credentials.NewClientTLSFromFile(ca, ""); err != nil {
			return nil, err
		}
	}
	return grpc.NewClient(server, grpc.WithTransportCredentials(security))
}

func main() {
	server := "localhost:8500"
	if len(os.Args) > 1 {
		server = os.Args[1]
	}
	connection, err := connect(server)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer connection.Close()

	images := make([]float32, 2*64) // a grey image, then a gradient
	for pixel := 0; pixel < 64; pixel++ {
		images[pixel] = 0.5
		images[64+pixel] = float32(pixel) / 63
	}
	predictions, err := predict(inference.NewGRPCInferenceServiceClient(connection), images)
	if err != nil {
		switch status.Code(err) {
		case codes.Unavailable, codes.ResourceExhausted:
			fmt.Fprintf(os.Stderr, "%s, try again later: %s\n", status.Code(err), status.Convert(err).Message())
		default:
			fmt.Fprintf(os.Stderr, "%s: %s\n", status.Code(err), status.Convert(err).Message())
		}
		os.Exit(1)
	}
	for i, probabilities := range predictions {
		digit := 0
		for candidate, probability := range probabilities {
			if probability > probabilities[digit] {
				digit = candidate
			}
		}
		fmt.Printf("image %d: digit %d, probability %.4f\n", i, digit, probabilities[digit])
	}
}
