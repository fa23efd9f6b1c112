"""Files that appear once they are complete."""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(to: Path) -> Iterator[io.BufferedWriter]:
    """Open a file that gets the name ``to`` when it is complete, and is removed on an error."""
    handle, part = tempfile.mkstemp(prefix=f".{to.name[:80]}.", suffix=".part", dir=to.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(part).replace(to)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
