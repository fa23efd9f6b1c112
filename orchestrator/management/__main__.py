"""``python -m orchestrator.management``: Django's command line, where there is no ``manage.py``."""

import os

from django.core.management import execute_from_command_line


def main(words: list[str]) -> None:
    """Run one command of the server; ``help`` lists them."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.server.settings")
    execute_from_command_line(words)


if __name__ == "__main__":
    import sys

    main(["manage.py", *sys.argv[1:]])
