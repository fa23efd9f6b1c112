"""Log formats of our own processes: lines for people, or JSON for a collector.

Logs contain text from users, so control characters are escaped.
"""

import logging


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
