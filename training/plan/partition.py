"""Former name of the command ``python -m training.research.partition``."""

import sys

from training.research.partition import describe_partitions, main

__all__ = ["describe_partitions", "main"]

if __name__ == "__main__":
    sys.exit(main())
