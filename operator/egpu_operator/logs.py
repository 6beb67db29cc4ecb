"""Log lines: text for people, JSON for collectors."""

import json
import logging
import sys
from datetime import UTC, datetime

from egpu_operator.settings import Settings


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record with its time in RFC 3339."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(settings: Settings) -> None:
    """Sends every logger's lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
