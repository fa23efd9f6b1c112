"""Archives of data, as a stranger may have made them."""

import errno
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.jobs.data.archives import Unpacking
from orchestrator.jobs.data.causes import CannotFetch
from orchestrator.spec.remote_data import read_remote

Member = tuple[str, bytes | str]  # a name with its content, or with where its link leads


def make_tar(members: Sequence[Member], *, hard: bool = False, mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]  # a mode of writing
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.LNKTYPE if hard else tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def make_zip(members: Sequence[Member]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            member = zipfile.ZipInfo(name)
            if isinstance(content, str):
                member.external_attr = 0o120777 << 16
            archive.writestr(member, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[..., dict[str, bytes]]:
    """Unpacks an archive; returns what is then there."""

    def take(content: bytes, *, most_bytes: int = 10_000, most_files: int = 10) -> dict[str, bytes]:
        archive = tmp_path / "data.bin"
        archive.write_bytes(content)
        files = Unpacking(tmp_path / "to", most_bytes, most_files).take(archive)
        assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]
        return {each.path: (tmp_path / "to" / each.path).read_bytes() for each in files}

    return take


@pytest.mark.parametrize("make", [make_tar, make_zip], ids=["tar", "zip"])
def test_files_are_unpacked_with_their_folders(unpack, make):
    members = [("train/1.txt", b"one"), ("./train/2.txt", b"two"), ("top.csv", b"")]

    assert unpack(make(members)) == {"train/1.txt": b"one", "train/2.txt": b"two", "top.csv": b""}


@pytest.mark.parametrize("make", [make_tar, make_zip], ids=["tar", "zip"])
def test_links_become_the_files_that_they_lead_to(unpack, make):
    members = [
        ("v2/a.txt", b"a"),
        ("a.txt", "latest/a.txt"),
        ("latest", "v2"),
        ("c.txt", "v2/a.txt"),
        ("d.txt", "c.txt"),
        ("gone", "nowhere"),
        ("circle", "circle"),
        ("v2/self", "."),
    ]

    found = unpack(make(members))

    places = ["v2/a.txt", "latest/a.txt", "a.txt", "c.txt", "d.txt"]
    assert found == dict.fromkeys(places, b"a")


def test_hard_link_of_a_tar_is_a_file(unpack):
    assert unpack(make_tar([("x/a", b"a"), ("y/b", "x/a")], hard=True)) == {"x/a": b"a", "y/b": b"a"}


def test_file_with_more_names_than_its_file_system_allows_is_copied(unpack, monkeypatch, tmp_path):
    link = os.link

    def link_as_ext4(source: Path, target: Path) -> None:
        if source.stat().st_nlink >= 3:
            raise OSError(errno.EMLINK, "Too many links")
        link(source, target)

    monkeypatch.setattr(os, "link", link_as_ext4)
    names = [f"b{number}" for number in range(7)]

    found = unpack(make_tar([("a", b"a"), *((name, "a") for name in names)], hard=True))

    assert found == dict.fromkeys(["a", *names], b"a")
    assert len({(tmp_path / "to" / name).stat().st_ino for name in found}) == 3


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("../out", b"x")], "leads out of it: '../out'"),
        ([("a/../../out", b"x")], "leads out of it"),
        ([("/etc/out", b"x")], "leads out of it: '/etc/out'"),
        ([("C:\\out", b"x")], "leads out of it"),
        ([("link", "/etc"), ("link/passwd", b"x")], "its link 'link' leads out of it"),
        ([("a/link", "../../..")], "its link 'a/link' leads out of it"),
        ([("a", b"x"), ("a/b", b"x")], "a file and a folder of one name"),
        ([], "has no files"),
    ],
    ids=["up", "down-and-up", "absolute", "drive", "link", "link-up", "file-and-folder", "empty"],
)
@pytest.mark.parametrize("make", [make_tar, make_zip], ids=["tar", "zip"])
def test_archive_that_leads_out_of_its_folder_is_refused(unpack, tmp_path, make, members, words):
    with pytest.raises(CannotFetch) as refusal:
        unpack(make(members))

    assert (refusal.value.cause, words in str(refusal.value)) == ("archive", True), str(refusal.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"data.bin", "to"}


def test_file_below_a_link_is_never_written_through_it(unpack):
    """The link is one to a folder of the archive, and becomes that only after all files were written."""
    assert unpack(make_tar([("to", "v1"), ("v1/a", b"a"), ("to/b", b"b")])) == {
        "v1/a": b"a",
        "to/a": b"a",
        "to/b": b"b",
    }


def test_device_in_an_archive_is_refused(unpack):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("pipe")
        member.type = tarfile.FIFOTYPE
        archive.addfile(member)

    with pytest.raises(CannotFetch, match="a device or pipe: 'pipe'"):
        unpack(buffer.getvalue())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"id,name\n1,a\n", "data.bin is neither a zip nor a tar archive"),
        (make_tar([("a", os.urandom(5000))])[:3000], "data.bin is damaged"),
        (make_zip([("a", b"x" * 5000)])[:-30], "data.bin is"),
    ],
    ids=["no-archive", "cut-tar", "cut-zip"],
)
def test_file_that_is_no_whole_archive_is_refused(unpack, content, words):
    with pytest.raises(CannotFetch, match=words):
        unpack(content)


@pytest.mark.parametrize("make", [make_tar, make_zip], ids=["tar", "zip"])
def test_archive_that_grows_beyond_the_room_is_stopped(unpack, tmp_path, make):
    content = make([("zeros", bytes(5_000_000))])
    assert len(content) < 100_000

    with pytest.raises(CannotFetch, match="more than the 10,000 bytes"):
        unpack(content)

    assert sum(path.stat().st_size for path in (tmp_path / "to").rglob("*")) <= 10_000
    with pytest.raises(CannotFetch, match="more than the 10 files"):
        unpack(make([(str(number), b"") for number in range(11)]))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            [("d/x", b"x"), *((f"l{each}", f"l{each + 1}") for each in range(15_000)), ("l15000", "d/x")],
            "",
        ),
        (
            [*((f"d/{each}", b"") for each in range(3000)), *((f"l{each}", "d") for each in range(3000))],
            "20,000 files",
        ),
        ([("x", b""), *((f"l{each}", "nowhere") for each in range(20_000))], "20,000 files"),
        ([("l0/x", b""), *((f"l{each + 1}/x", f"../l{each}/x/..") for each in range(9000))], ""),
    ],
    ids=["a chain", "one folder many times", "to nothing", "through one another"],
)
def test_archive_of_thousands_of_links_takes_a_moment(unpack, members, words):
    archive = make_tar(members, mode="w")
    before_s = time.process_time()

    if words:
        with pytest.raises(CannotFetch, match=words):
            unpack(archive, most_bytes=1 << 20, most_files=20_000)
    else:
        unpack(archive, most_bytes=1 << 20, most_files=20_000)

    assert time.process_time() - before_s < 6


def test_archive_with_a_name_that_cannot_be_read_is_called_damaged(unpack):
    archive = make_zip([("\u00e9.txt", b"x")])
    directory = archive.index(b"PK\x01\x02")
    broken = archive[: directory + 46] + b"\xff" + archive[directory + 47 :]

    with pytest.raises(CannotFetch, match="is damaged"):
        unpack(broken)


def test_address_says_that_its_archive_is_unpacked():
    plain = read_remote("https://example.org/digits.tar.gz#unpack")
    checked = read_remote(f"digits=https://example.org/x.zip#sha256={'a' * 64}&unpack")

    assert (plain.name, plain.unpack, plain.sha256) == ("digits", True, "")
    assert (checked.unpack, checked.sha256) == (True, "a" * 64)
    assert [each.reference for each in (plain, checked)] == [
        "https://example.org/digits.tar.gz#unpack",
        f"digits=https://example.org/x.zip#sha256={'a' * 64}&unpack",
    ]
    with pytest.raises(ValueError, match="or #unpack"):
        read_remote("https://example.org/x.zip#unzip")
