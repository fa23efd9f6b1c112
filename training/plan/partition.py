"""The name that scripts use for ``training.research.partition``, also as a command."""

import sys

from training.research.partition import describe_partitions, main

__all__ = ["describe_partitions", "main"]

if __name__ == "__main__":
    sys.exit(main())
