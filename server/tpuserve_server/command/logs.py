"""Logging of the server's processes to stderr: one line for each event, as text or JSON."""

import json
import logging
import os
from datetime import UTC, datetime
from typing import Literal, TypeAlias

LogFormat: TypeAlias = Literal["text", "json"]


def configure_logging(log_format: LogFormat = "text") -> None:
    """Log to stderr at TPUSERVE_LOG_LEVEL (default INFO)."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=os.environ.get("TPUSERVE_LOG_LEVEL", "INFO").upper(), handlers=[handler])
    # uvicorn's messages repeat the banner.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """Formatter that writes each event as a JSON object on one line.

    The keys are `time` (RFC 3339), `level`, `logger`, `thread`, `message` and, after an error, `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line feed."""
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)
