// Call the model `digits` over REST: go run ./rest [http://localhost:8501]
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

const timeout = 10 * time.Second

type image [8][8][1]float32

type instance struct {
	Image image `json:"image"`
}

// client keeps its connections, so use one for the whole program.
var client = &http.Client{}

// httpError is an answer of the server other than 200.
type httpError struct {
	status  int
	message string
}

func (e *httpError) Error() string { return fmt.Sprintf("%d: %s", e.status, e.message) }

// predict sends several images in one request, and returns the probabilities of each image.
func predict(server string, images []image) ([][]float32, error) {
	instances := make([]instance, len(images))
	for i, one := range images {
		instances[i].Image = one
	}
	body, err := json.Marshal(map[string]any{"instances": instances})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", server+"/v1/models/digits:predict", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	// The server stops at the same time.
	request.Header.Set("x-tpuserve-timeout-ms", fmt.Sprint(timeout.Milliseconds()))
	if key := os.Getenv("TPUSERVE_API_KEY"); key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Predictions [][]float32 `json:"predictions"`
		Error       string      `json:"error"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, &httpError{response.StatusCode, answer.Error}
	}
	return answer.Predictions, nil
}

func main() {
	server := "http://localhost:8501"
	if len(os.Args) > 1 {
		server = os.Args[1]
	}
	var grey, gradient image
	for y := 0; y < 8; y++ {
		for x := 0; x < 8; x++ {
			grey[y][x][0] = 0.5
			gradient[y][x][0] = float32(8*y+x) / 63
		}
	}
	predictions, err := predict(server, []image{grey, gradient})
	if err != nil {
		if refused, ok := err.(*httpError); ok && (refused.status == 429 || refused.status == 503) {
			fmt.Fprintln(os.Stderr, "try again later:", err)
		} else {
			fmt.Fprintln(os.Stderr, err)
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
