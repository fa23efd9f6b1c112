"""What a backup's members become on disk: all of them as they were, or none."""

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.server.backup.restoring import UNREADABLE
from orchestrator.server.backup.sealing import Damaged, Seal
from orchestrator.server.backup.unpacking import unpack
from orchestrator.server.backup.writing import _add

Change = Callable[[tarfile.TarFile], object]


@pytest.fixture
def home(tmp_path) -> Path:
    """A small state folder with everything that a job may leave in one."""
    home: Path = tmp_path / "home"
    work = home / "jobs" / "7" / "work"
    (work / "inner").mkdir(parents=True)
    (home / "secret_key").write_text("of this installation")
    (home / "secret_key").chmod(0o600)
    (work / "main.py").write_text("print('hello')\n" * 200)
    (work / "main.py").chmod(0o755)
    (work / "inner" / "state.pt").write_bytes(bytes(range(250)) * 36)
    os.link(work / "inner" / "state.pt", work / "kept.pt")
    (work / "python").symlink_to("/usr/bin/python3")
    (work / "inner" / "up").symlink_to("../main.py")
    (work / os.fsdecode(b"caf\xe9\n")).write_text("a name that is no UTF-8")
    return home


def names_below(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def pack(home: Path, path: Path, change: Change = lambda archive: None, *, seal: bool = True) -> Path:
    sealed = Seal()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in names_below(home):
            _add(archive, sealed, home / name, f"home/{name}")
        change(archive)
        if seal:
            sealed.write(archive)
    return path


def read(path: Path, into: Path, *, sealed: bool = True) -> bool:
    into.mkdir()
    with tarfile.open(path) as archive:
        return unpack(archive, into, sealed=sealed)


def described(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder that a restore must put back."""
    found: dict[str, tuple[object, ...]] = {}
    for name in names_below(folder):
        path = folder / name
        status = path.lstat()
        if path.is_symlink():
            found[str(name)] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[str(name)] = ("folder", stat.S_IMODE(status.st_mode), int(status.st_mtime))
        else:
            content = path.read_bytes()
            found[str(name)] = (stat.S_IMODE(status.st_mode), int(status.st_mtime), status.st_nlink, content)
    return found


def test_unpacked_members_are_what_was_packed(home, tmp_path):
    assert read(pack(home, tmp_path / "b.tar"), tmp_path / "out")

    assert described(tmp_path / "out" / "home") == described(home)


def test_no_changed_byte_passes_for_a_sound_backup(home, tmp_path):
    sound = pack(home, tmp_path / "b.tar").read_bytes()
    wanted = described(home)
    places = range(11, len(sound), len(sound) // 250)  # in headers, names, contents and padding

    for number, at in enumerate(places):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (number % 8)
        (tmp_path / "damaged.tar").write_bytes(damaged)
        into = tmp_path / f"out{number}"
        try:
            read(tmp_path / "damaged.tar", into)
        except UNREADABLE:
            continue
        assert described(into / "home") == wanted, f"byte {at}"


@pytest.mark.parametrize("part", [0.3, 0.5, 0.7])
def test_a_backup_that_was_cut_off_is_refused(home, tmp_path, part):
    path = pack(home, tmp_path / "b.tar")
    os.truncate(path, int(path.stat().st_size * part) // 512 * 512)

    with pytest.raises(UNREADABLE):
        read(path, tmp_path / "out")


def test_a_changed_file_is_named(home, tmp_path):
    path = pack(home, tmp_path / "b.tar")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"of this installation", b"of that installation"))

    with pytest.raises(Damaged, match=r"'home/secret_key' is not what was written"):
        read(path, tmp_path / "out")


def test_a_backup_without_checksums_is_unpacked_and_that_is_told(home, tmp_path):
    path = pack(home, tmp_path / "b.tar", seal=False)

    assert not read(path, tmp_path / "out", sealed=False)
    assert described(tmp_path / "out" / "home") == described(home)


def test_a_backup_whose_checksums_are_missing_is_refused(home, tmp_path):
    path = pack(home, tmp_path / "b.tar", seal=False)

    with pytest.raises(Damaged, match="list of checksums is missing"):
        read(path, tmp_path / "out")


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> Change:
    def add(archive: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.mode = kind, target, mode
        entry.size = 4 if kind == tarfile.REGTYPE else 0
        archive.addfile(entry, io.BytesIO(b"evil"))

    return add


def both(*changes: Change) -> Change:
    return lambda archive: [change(archive) for change in changes]


@pytest.mark.parametrize(
    "change",
    [
        member("../evil"),
        member("/tmp/evil"),  # noqa: S108  # refused before anything is written
        member("home/../../evil"),
        member("home/door", tarfile.SYMTYPE, "/etc"),
        member("home/door", tarfile.SYMTYPE, "../../etc"),
        both(member("home/jobs/8/d", tarfile.SYMTYPE, "../../../.."), member("home/jobs/8/d/evil")),
        both(member("home/jobs/8/d", tarfile.SYMTYPE, "/"), member("home/jobs/8/d")),
        member("home/hosts", tarfile.LNKTYPE, "/etc/hosts"),
        member("home/hosts", tarfile.LNKTYPE, "../outside"),
        member("home/pipe", tarfile.FIFOTYPE),
        member("home/null", tarfile.CHRTYPE),
        both(member("home/twice"), member("home/twice")),
        member("home/extra"),  # sound, but not in the seal
    ],
)
def test_members_that_lead_out_or_were_not_written_by_a_backup_are_refused(home, tmp_path, change):
    (tmp_path / "outside").write_text("sound")
    before = {path.name for path in tmp_path.iterdir()} | {"b.tar", "out"}
    path = pack(home, tmp_path / "b.tar", change)

    with pytest.raises((Damaged, OSError)):
        read(path, tmp_path / "out")

    assert {each.name for each in tmp_path.iterdir()} == before
    assert (tmp_path / "outside").read_text() == "sound"


def test_special_bits_and_rights_of_others_are_not_put_back(home, tmp_path):
    (home / "jobs/7/work/main.py").chmod(0o6777)
    (home / "jobs/7/work/inner").chmod(0o000)

    path = pack(home, tmp_path / "b.tar")
    (home / "jobs/7/work/inner").chmod(0o700)
    read(path, tmp_path / "out")

    work = tmp_path / "out/home/jobs/7/work"
    assert stat.S_IMODE((work / "main.py").stat().st_mode) == 0o755
    assert stat.S_IMODE((work / "inner").stat().st_mode) == 0o700
