"""What operators see of a server: metrics, requests that have ended, traces, logs, and the request log."""
