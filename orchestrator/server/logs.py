"""Logs of our own processes: what is written, and as lines for people or as JSON for a collector.

Logs contain text from users, so control characters are escaped.
"""

import logging
from collections.abc import Mapping


def _shown(character: str) -> str:
    return character if character.isprintable() or character == "\t" else repr(character)[1:-1]


class TextLines(logging.Formatter):
    """One line per record, followed by its traceback."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname} {name}: {message}", style="{")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = "".join(map(_shown, record.message))
        return super().formatMessage(record)


def json_lines() -> logging.Formatter:
    """One JSON object per record: timestamp, level, logger, event, exception."""
    import structlog  # with rich, for its colours: every process would load both for lines of text

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )


def django_settings(log_format: str) -> Mapping[str, object]:
    """The setting ``LOGGING``.

    Args:
        log_format: ``text`` or ``json``.
    """
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"text": {"()": TextLines}, "json": {"()": json_lines}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": log_format}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {"orchestrator": {"level": "INFO"}, "dashboard": {"level": "INFO"}},
    }
