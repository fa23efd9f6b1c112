"""``python -m berth.cli``, where the script ``berth`` is not on the path."""

from berth.cli import main

main()
