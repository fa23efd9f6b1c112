"""What the entry of a rank does around the script.  Standard library only.

The entry and ``sitecustomize`` load these modules under the name ``_berth_rooms.rank``: the script may have a package
of its own that is called ``training``.
"""

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import os

FOLDER = os.environ.get("BERTH_ATTEMPT_FOLDER")
RANK = os.environ.get("RANK", "0")
PID = os.getpid()  # a child that the script forks gets to the end as well, but is not the rank
TYPE_CHECKING = False  # typing.TYPE_CHECKING; importing it takes 9 ms of the time to the script's first line
