"""Why an image cannot be had; nothing of Django, for the fetching program."""


class CannotGet(Exception):
    """An image cannot be had: a cause to decide by, and words for people."""

    def __init__(self, cause: str, words: str) -> None:
        super().__init__(words)
        self.cause = cause
