"""Former name of the command ``python -m training.layers.partition``."""

import sys

from training.layers.partition import describe_partitions, main

__all__ = ["describe_partitions", "main"]

if __name__ == "__main__":
    sys.exit(main())
