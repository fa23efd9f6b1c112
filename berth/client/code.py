"""Reading the code to submit."""

from collections.abc import Sequence
from pathlib import Path

from berth.client.errors import BerthError
from berth.client.spec import Spec

ARCHIVES = (".zip", ".tar.gz", ".tgz")


def read_code(path: Path, spec: Spec) -> tuple[str, str, bytes]:
    """Read the code to submit: name of the multipart part, file name, bytes."""
    try:
        if path.is_dir():
            has_script = not any(spec.get(name) for name in ("module", "command", "program"))
            needed = [spec.get("entrypoint") or "train.py"] if has_script else []
            return "bundle", "code.zip", pack_folder(path, needed=needed)
        if path.is_char_device() or path.is_block_device():  # such as /dev/zero, which has no end
            raise BerthError(f"{path} is a device, not a script, an archive or a folder.")
        part = "bundle" if path.name.endswith(ARCHIVES) else "script"
        return part, path.name, path.read_bytes()
    except OSError as error:
        raise BerthError(f"{path} cannot be read: {error.strerror or error}.") from error


def add_git_state(path: Path, spec: Spec) -> None:
    from berth.uploads.git_state import read_state

    state = read_state(path)
    if state is not None:
        spec.setdefault("git", {**state})


def pack_folder(folder: Path, *, needed: Sequence[str] = ()) -> bytes:
    """Pack a folder as a zip archive; ``berth.uploads.packing`` says what stays out.

    Raises:
        BerthError: nothing or too much would be packed, or a file that is ``needed`` is ignored.
    """
    from berth.uploads.packing import CannotPack, pack

    try:
        return pack(folder, needed=needed)
    except CannotPack as error:
        raise BerthError(str(error)) from None
