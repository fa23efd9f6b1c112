"""Uploads: what is refused, that nothing is left behind, and that content alone names a bundle."""

import gzip
import io
import os
import stat
import struct
import subprocess
import sys
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.exceptions import Malformed, NotFound, TooLarge
from orchestrator.store.bundles.archives import parse_pax
from orchestrator.store.bundles.bundles import (
    BundleLimits,
    clear_leftovers,
    materialise,
    open_bundle,
    store_archive,
    store_script,
)
from orchestrator.store.bundles.names import member_path

MIB = 1 << 20
SMALL = BundleLimits(total_bytes=4 * MIB, members=50)


@pytest.fixture
def bundles(tmp_path):
    return tmp_path / "bundles"


def pack_zip(members, *, compression=zipfile.ZIP_DEFLATED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as opened:
        for name, data in members:
            opened.writestr(name, data)
    return packed


def pack_tar(members, mode="w:gz", **options):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, **options) as opened:
        for member, data in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(data)
            opened.addfile(info, io.BytesIO(data))
    return packed


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def zip_entry(name, mode):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def assert_nothing_left(bundles):
    assert not bundles.exists() or not list(bundles.iterdir())


def assert_refused(bundles, archive, *, naming="", error=Malformed, limits=SMALL):
    with pytest.raises(error) as caught:
        store_archive(bundles, archive, limits)
    assert naming in str(caught.value)
    assert_nothing_left(bundles)


def test_a_script_becomes_a_bundle_of_one_file(bundles):
    bundle = store_script(bundles, "train.py", b"print(1)\n")

    assert [file.path for file in bundle.files] == ["train.py"]
    assert (bundles / bundle.sha256 / "train.py").read_bytes() == b"print(1)\n"
    assert open_bundle(bundles, bundle.sha256) == bundle


def test_the_same_content_has_one_hash_in_every_format(bundles):
    members = [("pkg/model.py", b"x = 1\n"), ("train.py", b"print(1)\n")]
    older = zipfile.ZipInfo("train.py", (1999, 1, 1, 0, 0, 0))

    hashes = {
        store_archive(bundles, archive).sha256
        for archive in (
            pack_zip(members),
            pack_zip([(older, members[1][1]), ("empty/", b""), members[0]], compression=zipfile.ZIP_STORED),
            pack_tar(members),
            pack_tar([("./" + name, data) for name, data in reversed(members)], mode="w"),
            pack_tar(members, mode="w", format=tarfile.GNU_FORMAT),
        )
    }

    assert len(hashes) == 1
    assert [path.name for path in bundles.iterdir()] == list(hashes)


def test_an_archive_of_one_script_is_the_script(bundles):
    assert store_script(bundles, "a.py", b"1\n") == store_archive(bundles, pack_zip([("a.py", b"1\n")]))


def test_another_name_or_byte_is_another_bundle(bundles):
    hashes = {
        store_script(bundles, name, data).sha256
        for name, data in [("a.py", b"1"), ("b.py", b"1"), ("a.py", b"2")]
    }

    assert len(hashes) == 3


@pytest.mark.code("B01")
def test_zip_bomb_is_refused_before_writing(bundles):
    bomb = pack_zip([(f"{n}.bin", bytes(MIB)) for n in range(5)])

    assert_refused(bundles, bomb, naming="4.bin", error=TooLarge)


@pytest.mark.code("B01")
def test_a_high_ratio_is_refused_below_the_total(bundles):
    limits = BundleLimits(total_bytes=64 * MIB, ratio=100)

    assert_refused(
        bundles, pack_tar([("zeros.bin", bytes(20 * MIB))]), naming="zeros.bin", error=TooLarge, limits=limits
    )


@pytest.mark.code("B01")
def test_gzip_bomb_is_stopped_while_unpacking(bundles):
    packed = pack_tar([("big.bin", bytes(8 * MIB))])
    tracemalloc.start()

    assert_refused(bundles, packed, naming="big.bin", error=TooLarge)

    assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    tracemalloc.stop()


@pytest.mark.code("B02")
def test_nested_zips_stay_packed(bundles):
    inner = pack_zip([("../../evil", b"x")]).getvalue()

    bundle = store_archive(bundles, pack_zip([("inner.zip", inner)]))

    assert [file.path for file in bundle.files] == ["inner.zip"]


@pytest.mark.parametrize("name", ["../../etc/x", "a/../../x", "..", "a/.."])
@pytest.mark.parametrize("pack", [pack_zip, pack_tar])
@pytest.mark.code("B03")
def test_names_that_lead_out_are_refused(bundles, pack, name):
    assert_refused(bundles, pack([("ok.py", b"1"), (name, b"x")]), naming=name)


@pytest.mark.parametrize("pack", [pack_zip, pack_tar])
@pytest.mark.code("B04")
def test_absolute_names_are_refused(bundles, pack):
    assert_refused(bundles, pack([("/etc/passwd", b"x")]), naming="/etc/passwd")


@pytest.mark.code("B05")
def test_symlink_members_are_refused(bundles):
    link = zip_entry("link", stat.S_IFLNK | 0o777)

    assert_refused(bundles, pack_zip([(link, b"/etc/passwd")]), naming="'link' is a symbolic link")
    assert_refused(
        bundles,
        pack_tar([(special("link", tarfile.SYMTYPE, "/etc"), b"")]),
        naming="'link' is a symbolic link",
    )


@pytest.mark.code("B06")
def test_hard_links_are_refused(bundles):
    members = [("a", b"1"), (special("b", tarfile.LNKTYPE, "a"), b"")]

    assert_refused(bundles, pack_tar(members), naming="'b' is a hard link")


@pytest.mark.parametrize(
    "kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z"]
)
@pytest.mark.code("B07")
def test_special_members_of_tar_are_refused(bundles, kind):
    assert_refused(bundles, pack_tar([(special("odd", kind), b"")]), naming="'odd' is")


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
@pytest.mark.code("B07")
def test_special_members_of_zip_are_refused(bundles, kind):
    assert_refused(bundles, pack_zip([(zip_entry("odd", kind | 0o666), b"")]), naming="'odd' is")


@pytest.mark.code("B08")
def test_a_file_through_a_link_is_refused(bundles, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    members = [(special("d", tarfile.SYMTYPE, str(outside)), b""), ("d/planted", b"x")]

    assert_refused(bundles, pack_tar(members), naming="'d' is a symbolic link")
    assert not list(outside.iterdir())


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.code("B09")
def test_duplicate_and_colliding_names_are_refused(bundles):
    assert_refused(bundles, pack_zip([("a.py", b"1"), ("a.py", b"2")]), naming="twice")
    assert_refused(bundles, pack_tar([("a.py", b"1"), ("./a.py", b"2")]), naming="twice")
    assert_refused(bundles, pack_tar([("Model.py", b"1"), ("model.py", b"2")]), naming="only in case")
    assert_refused(bundles, pack_tar([("Pkg/a", b"1"), ("pkg/b", b"2")]), naming="only in case")
    assert_refused(bundles, pack_tar([("a", b"1"), ("a/b", b"2")]), naming="twice")
    # e with an accent, composed and not: one name after NFC
    assert_refused(bundles, pack_tar([("\u00e9.py", b"1"), ("e\u0301.py", b"2")]), naming="twice")


@pytest.mark.parametrize("pack", [pack_zip, pack_tar])
@pytest.mark.code("B10")
def test_too_many_members_are_refused(bundles, pack):
    assert_refused(bundles, pack([(f"{n}", b"") for n in range(51)]), naming="50", error=TooLarge)


@pytest.mark.code("B10")
def test_members_are_counted_before_zipfile_sees_them(bundles):
    packed = bytearray(pack_zip([(f"{n}", b"") for n in range(200)]).getvalue())
    end = packed.rfind(b"PK\x05\x06")
    struct.pack_into("<2H", packed, end + 8, 1, 1)  # says that there is one

    assert_refused(bundles, io.BytesIO(bytes(packed)), error=TooLarge)


@pytest.mark.parametrize("name", ["n" * 5000, "/".join("d" * 200), "n" * 256, "\u00e9" * 200])
@pytest.mark.parametrize("pack", [pack_zip, pack_tar])
@pytest.mark.code("B11")
def test_long_and_deep_names_are_refused(bundles, pack, name):
    assert_refused(bundles, pack([(name, b"")]))


@pytest.mark.parametrize("name", ["a\nb", "a:b", "a\\b", "C:\\x", "a\x1bb", "a\x7f", "a\x85"])
@pytest.mark.parametrize("pack", [pack_zip, pack_tar])
@pytest.mark.code("B12")
def test_odd_characters_are_refused(bundles, pack, name):
    assert_refused(bundles, pack([(name, b"")]), naming="rename the file")


@pytest.mark.code("B12")
def test_nul_in_a_zip_name_is_refused(bundles):
    packed = pack_zip([("train.pyXY", b"1")]).getvalue().replace(b"train.pyXY", b"train.py\0Y")

    assert_refused(bundles, io.BytesIO(packed))


@pytest.mark.code("B13")
def test_setuid_and_execute_bits_are_dropped(bundles):
    member = tarfile.TarInfo("run.sh")
    member.mode = 0o6777

    bundle = store_archive(bundles, pack_tar([(member, b"#!/bin/sh\n")]))

    assert stat.S_IMODE((bundles / bundle.sha256 / "run.sh").stat().st_mode) == 0o444


@pytest.mark.parametrize("pack", [pack_zip, pack_tar, lambda members: pack_tar(members, mode="w")])
@pytest.mark.code("B14")
def test_truncated_archives_are_refused_at_every_length(bundles, pack):
    packed = pack([("a.py", os.urandom(700)), ("b.py", b"2" * 900)]).getvalue()
    # A tar ends in zeros, of which one block is enough.
    end = (
        len(packed.rstrip(b"\0"))
        if packed[:4] != b"PK\x03\x04" and packed[:2] != b"\x1f\x8b"
        else len(packed) - 1
    )

    for length in range(0, end, 41):
        assert_refused(bundles, io.BytesIO(packed[:length]))


@pytest.mark.code("B14")
def test_a_wrong_checksum_is_refused(bundles):
    packed = bytearray(pack_zip([("a.py", b"1" * 100)], compression=zipfile.ZIP_STORED).getvalue())
    packed[50] ^= 1

    assert_refused(bundles, io.BytesIO(bytes(packed)), naming="damaged")


@pytest.mark.code("B14")
def test_a_wrong_checksum_of_gzip_is_refused(bundles):
    packed = bytearray(pack_tar([("a.py", b"1" * 100)]).getvalue())
    packed[-6] ^= 1

    assert_refused(bundles, io.BytesIO(bytes(packed)), naming="damaged")


@pytest.mark.code("B14")
def test_encrypted_zips_are_refused(bundles):
    packed = bytearray(pack_zip([("a.py", b"1")]).getvalue())
    packed[6] |= 1
    packed[packed.find(b"PK\x01\x02") + 8] |= 1

    assert_refused(bundles, io.BytesIO(bytes(packed)), naming="encrypted")


@pytest.mark.parametrize("stated", [1, 10 * MIB, 0xFFFFFFFE])
@pytest.mark.code("B15")
def test_sizes_in_the_directory_are_not_believed(bundles, stated):
    packed = bytearray(pack_zip([("a.bin", bytes(1000))]).getvalue())
    struct.pack_into("<L", packed, packed.find(b"PK\x01\x02") + 24, stated)

    with pytest.raises((Malformed, TooLarge)):
        store_archive(bundles, io.BytesIO(bytes(packed)), SMALL)
    assert_nothing_left(bundles)


@pytest.mark.code("B16")
def test_overlapping_members_are_refused(bundles):
    """Two directory entries that unpack the same bytes (the shape of D. Fifield, A better zip bomb)."""
    packed = pack_zip([("a.bin", b"x" * 500)]).getvalue()
    start, end = packed.find(b"PK\x01\x02"), packed.rfind(b"PK\x05\x06")
    entry = packed[start:end]
    record = bytearray(packed[end:])
    struct.pack_into("<2HL", record, 8, 2, 2, 2 * len(entry))

    assert_refused(bundles, io.BytesIO(packed[:end] + entry + bytes(record)), naming="overlaps")


@pytest.mark.code("B17")
def test_empty_scripts_and_archives_are_refused(bundles):
    with pytest.raises(Malformed, match="empty"):
        store_script(bundles, "train.py", b"")
    assert_refused(bundles, pack_zip([]), naming="no files")
    assert_refused(bundles, pack_tar([(special("d", tarfile.DIRTYPE), b"")]), naming="no files")
    assert_refused(bundles, io.BytesIO(b""))


@pytest.mark.code("B18")
def test_large_scripts_and_uploads_are_too_large(bundles):
    limits = BundleLimits(script_bytes=100, upload_bytes=100)

    with pytest.raises(TooLarge, match=r"train\.py"):
        store_script(bundles, "train.py", b"#" * 101, limits)
    assert_refused(bundles, pack_zip([("a", b"1" * 200)]), error=TooLarge, limits=limits)


@pytest.mark.parametrize(
    "data",
    [b"hello", b"\x7fELF" + bytes(600), b"BZh9" + bytes(600), b"PK\x03\x04", b"\x1f\x8b\x08", bytes(2000)],
)
@pytest.mark.code("B26")
def test_content_decides_what_an_archive_is(bundles, data):
    assert_refused(bundles, io.BytesIO(data))


@pytest.mark.code("B27")
def test_names_are_stored_composed(bundles):
    bundle = store_archive(bundles, pack_zip([("e\u0301\U0001f600.py", b"1")]))

    assert bundle.files[0].path == "\u00e9\U0001f600.py"
    assert open_bundle(bundles, bundle.sha256) == bundle


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200f", "\u2028", "\x00"])
@pytest.mark.code("B27")
def test_direction_and_control_characters_are_refused(bundles, character):
    with pytest.raises(Malformed) as caught:
        store_script(bundles, f"a{character}b.py", b"1")

    assert character not in str(caught.value)


@pytest.mark.code("B27")
def test_names_that_are_not_utf8_are_refused(bundles):
    packed = pack_tar([("latin.py", b"1")], mode="w").getvalue()
    header = bytearray(packed[:512].replace(b"latin", b"l\xe4tin"))
    header[148:156] = b"%06o\0 " % (sum(header[:148] + b" " * 8 + header[156:]))

    assert_refused(bundles, io.BytesIO(bytes(header) + packed[512:]), naming="rename")


def test_a_missing_or_impossible_bundle_is_not_found(bundles):
    for sha256 in ("0" * 64, "../..", "", "A" * 64):
        with pytest.raises(NotFound):
            open_bundle(bundles, sha256)


def test_long_pax_headers_and_global_ones_are_read(bundles):
    name = "d" * 120 + "/" + "n" * 120 + ".py"
    packed = pack_tar([(name, b"1")], format=tarfile.PAX_FORMAT, pax_headers={"comment": "c" * 40})

    assert store_archive(bundles, packed).files[0].path == name


def test_an_endless_pax_header_is_refused(bundles):
    header = special("x", tarfile.XHDTYPE)
    header.size = 1 << 40
    packed = header.tobuf(tarfile.GNU_FORMAT) + bytes(512)

    assert_refused(bundles, io.BytesIO(packed), naming="header")


def test_a_gzip_that_is_no_tar_is_refused(bundles):
    assert_refused(bundles, io.BytesIO(gzip.compress(b"just text " * 100)))


def test_the_working_copy_is_writable_and_apart(bundles, tmp_path):
    bundle = store_archive(bundles, pack_zip([("a.py", b"1"), ("pkg/b.py", b"2")]))

    materialise(bundles, bundle.sha256, tmp_path / "work")
    (tmp_path / "work/a.py").write_bytes(b"changed")

    assert stat.S_IMODE((tmp_path / "work/pkg/b.py").stat().st_mode) == 0o644
    assert (bundles / bundle.sha256 / "a.py").read_bytes() == b"1"


def test_an_empty_working_folder_is_filled(bundles, tmp_path):
    bundle = store_script(bundles, "a.py", b"1")
    (tmp_path / "work").mkdir()

    materialise(bundles, bundle.sha256, tmp_path / "work")

    assert (tmp_path / "work/a.py").read_bytes() == b"1"


def test_a_complete_working_folder_is_left_alone(bundles, tmp_path):
    bundle = store_script(bundles, "a.py", b"1")
    materialise(bundles, bundle.sha256, tmp_path / "work")
    (tmp_path / "work/a.py").write_bytes(b"mine")

    materialise(bundles, bundle.sha256, tmp_path / "work")

    assert (tmp_path / "work/a.py").read_bytes() == b"mine"


CRASH = """
import os, sys
from pathlib import Path
from orchestrator.store.bundles import bundles
from orchestrator.store.files import durable
left = int(sys.argv[1])
def counted(name):
    real = getattr(os, name)
    def step(*arguments, **options):
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return real(*arguments, **options)
    setattr(os, name, step)
for name in ("open", "write", "fsync", "rename", "mkdir", "fchmod", "close", "copy_file_range"):
    counted(name)
home = Path(sys.argv[2])
if sys.argv[3] == "store":
    bundles.store_archive(home / "bundles", open(home / "a.zip", "rb"))
else:
    bundles.materialise(home / "bundles", sys.argv[4], home / "work")
"""


def run_and_stop_after(operations, *arguments):
    return subprocess.run(
        [sys.executable, "-c", CRASH, str(operations), *map(str, arguments)], check=False
    ).returncode


@pytest.mark.slow
def test_a_crash_after_any_operation_leaves_the_whole_bundle_or_none(tmp_path):
    archive = pack_zip([("a.py", b"1" * 10), ("b/c.py", b"2" * 10)])
    (tmp_path / "a.zip").write_bytes(archive.getvalue())
    expected = store_archive(tmp_path / "elsewhere", archive)
    bundles = tmp_path / "bundles"

    for operations in range(0, 60, 3):
        ended = run_and_stop_after(operations, tmp_path, "store")
        whole = (
            [path for path in bundles.glob("*") if not path.name.startswith(".")] if bundles.exists() else []
        )
        assert all(open_bundle(bundles, path.name) == expected for path in whole)
        if ended == 0:
            break

    assert ended == 0
    assert whole


@pytest.mark.slow
def test_a_crash_never_leaves_half_a_working_folder(tmp_path):
    bundle = store_archive(tmp_path / "bundles", pack_zip([("a.py", b"1" * 10), ("b/c.py", b"2" * 10)]))

    for operations in range(0, 60, 3):
        ended = run_and_stop_after(operations, tmp_path, "materialise", bundle.sha256)
        if (tmp_path / "work").exists():
            assert (tmp_path / "work/a.py").read_bytes() == b"1" * 10
            assert (tmp_path / "work/b/c.py").read_bytes() == b"2" * 10
        if ended == 0:
            break

    assert ended == 0
    assert (tmp_path / "work").exists()


def test_leftovers_go_after_an_hour(bundles):
    store_script(bundles, "a.py", b"1")
    (bundles / ".incoming-dead").mkdir()

    assert clear_leftovers(bundles) == 0
    assert clear_leftovers(bundles, now=time.time() + 4000) == 1
    assert len(list(bundles.iterdir())) == 1


@given(st.text(max_size=60))
def test_every_accepted_name_stays_inside(name):
    try:
        path = member_path(name, depth=32, name_bytes=1024)
    except Malformed:
        return
    assert Path("/inside", path).resolve().is_relative_to("/inside")
    assert member_path(path, depth=32, name_bytes=1024) == path


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_archives_are_refused_with_a_sentence(tmp_path_factory, data):
    pack = data.draw(st.sampled_from([pack_zip, pack_tar, lambda members: pack_tar(members, mode="w")]))
    packed = bytearray(pack([("a.py", b"print(1)\n" * 20), ("b/c.py", b"x")]).getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    bundles = tmp_path_factory.mktemp("bundles")

    try:
        bundle = store_archive(bundles, io.BytesIO(bytes(packed)), SMALL)
    except (Malformed, TooLarge):
        assert_nothing_left(bundles)
    else:
        assert open_bundle(bundles, bundle.sha256) == bundle


@pytest.mark.slow
@pytest.mark.parametrize("value", [0, 1, 206, 255])
def test_every_damaged_byte_of_a_zip_is_refused_or_does_no_harm(tmp_path, value):
    whole = pack_zip([("a.py", b"print(1)\n" * 20), ("b/c.py", b"x")]).getvalue()
    refusals = []

    for position in range(len(whole)):
        packed = bytearray(whole)
        packed[position] = value
        try:
            store_archive(tmp_path, io.BytesIO(bytes(packed)), SMALL)
        except (Malformed, TooLarge) as refusal:
            refusals.append(str(refusal))

    assert len(refusals) >= 50
    assert all(refusal.endswith(".") for refusal in refusals)


def test_a_zip_with_a_name_that_is_no_utf8_is_refused(tmp_path):
    packed = pack_zip([("é.py", b"print(1)")]).getvalue().replace("é".encode(), b"\x94\x94")

    with pytest.raises(Malformed, match="damaged"):
        store_archive(tmp_path, io.BytesIO(packed), SMALL)


@given(st.binary(max_size=200))
def test_any_pax_header_is_read_or_refused(data):
    try:
        assert isinstance(parse_pax(data), dict)
    except Malformed:
        assert data


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=2000))
def test_any_bytes_in_a_gzip_are_refused_or_stored(tmp_path_factory, data):
    bundles = tmp_path_factory.mktemp("bundles")
    packed = zlib.compress(data, wbits=31)

    with pytest.raises((Malformed, TooLarge)):
        store_archive(bundles, io.BytesIO(packed), SMALL)
