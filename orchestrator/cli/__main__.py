"""``python -m orchestrator.cli``, where the script ``berth`` is not on the path."""

from orchestrator.cli import main

main()
