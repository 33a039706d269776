"""The console: a page in the server, the status and the slow requests as JSON, and live figures as events."""
