"""Datasets: registered under a root, checked at use."""

import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.exceptions import Conflict, Forbidden, Impossible, Malformed, Unavailable
from orchestrator.jobs import dataset_files, datasets
from orchestrator.jobs.submission import checks
from orchestrator.models import Dataset, DatasetRoot
from orchestrator.spec.job_spec import JobSpec
from tests.conftest import NOBODY, lacking

PROBE = """
import sys
from pathlib import Path
import django
django.setup()
from orchestrator.jobs import dataset_files, datasets
from orchestrator.exceptions import Impossible
try:
    datasets.check_root(sys.argv[1])
    dataset_files.measure(Path(sys.argv[1]))
except Impossible as error:
    print(error)
"""


@pytest.fixture
def data(tmp_path, db, home):
    folder = tmp_path / "data"
    (folder / "digits").mkdir(parents=True)
    (folder / "digits" / "train.bin").write_bytes(b"0123456789")
    (folder / "text.txt").write_bytes(b"abc")
    DatasetRoot.objects.create(name="data", path=str(folder))
    return folder


@pytest.fixture
def digits(data, ada) -> Dataset:
    return datasets.register(ada, name="digits", root="data", path="digits")


def test_a_dataset_is_registered_with_size_and_checksum(data, client_of, ada):
    body = {"name": "text", "root": "data", "path": "text.txt", "description": "three letters"}

    made = client_of(ada).send("POST", "/datasets", body)

    assert made.status_code == 201, made.content
    shown = made.json()
    assert (shown["reference"], shown["owner"], shown["available"]) == ("text@1", "ada", True)
    assert (shown["size_bytes"], shown["sha256"]) == (3, hashlib.sha256(b"abc").hexdigest())


def test_the_checksum_of_a_folder_covers_names_and_contents(data):
    before = dataset_files.measure(data / "digits")
    (data / "digits" / "train.bin").rename(data / "digits" / "test.bin")

    assert before[0] == dataset_files.measure(data / "digits")[0] == 10
    assert before[1] != dataset_files.measure(data / "digits")[1]


def test_large_data_has_a_size_and_no_checksum(data):
    with (data / "large").open("wb") as file:
        file.truncate(dataset_files.HASHED_BYTES + 1)

    assert dataset_files.measure(data / "large") == (dataset_files.HASHED_BYTES + 1, "")


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../x",
        "a/../../x",
        "/etc/passwd",
        "file:///etc",
        "http://x/y",
        "",
        "a\\b",
        "a\nb",
        "a\0b",
        "a\ud800",
        "x" * 2000,
    ],
)
def test_b35_paths_that_leave_the_root_are_400(path, data, client_of, ada):
    body = json.dumps({"name": "x", "root": "data", "path": path}).encode()

    answer = client_of(ada).send("POST", "/datasets", body)

    assert answer.status_code == 400
    assert not Dataset.objects.exists()


def test_an_operator_registers_by_absolute_path_on_a_fresh_server(tmp_path, db, home, client_of, root):
    (tmp_path / "My Data").mkdir()
    (tmp_path / "My Data" / "a.txt").write_text("abc")
    client = client_of(root)

    made = client.send("POST", "/datasets", {"name": "all", "path": str(tmp_path / "My Data")})
    inner = client.send("POST", "/datasets", {"name": "a", "path": str(tmp_path / "My Data" / "a.txt")})

    assert made.status_code == 201, made.content
    assert (made.json()["root"], made.json()["path"], made.json()["available"]) == ("my-data", ".", True)
    assert (inner.json()["root"], inner.json()["path"], inner.json()["size_bytes"]) == ("my-data", "a.txt", 3)
    assert DatasetRoot.objects.get().path == str(tmp_path / "My Data")


def test_roots_of_folders_with_one_name_are_told_apart(tmp_path, db, home, root):
    for parent in ("x", "y"):
        (tmp_path / parent / "data").mkdir(parents=True)
        path = str(tmp_path / parent / "data")
        datasets.register(root, name=parent, path=path, may_add_root=True)

    assert sorted(DatasetRoot.objects.values_list("name", flat=True)) == ["data", "data-2"]


def test_a_member_is_told_who_makes_roots(tmp_path, data, client_of, ada, root):
    body = {"name": "x", "path": str(tmp_path)}

    for client, status in ((client_of(ada), 403), (client_of(root, "write"), 403)):
        answer = client.send("POST", "/datasets", body)
        assert answer.status_code == status
        assert "known: data. An admin adds roots" in answer.json()["errors"]["root"][0]
    relative = client_of(ada).send("POST", "/datasets", {**body, "path": "text.txt"})
    assert relative.status_code == 400
    assert "Name the root" in relative.json()["errors"]["root"][0]
    assert not Dataset.objects.exists()


def test_a_member_registers_an_absolute_path_under_a_root(data, client_of, ada):
    (data / "out").symlink_to("/etc")
    client = client_of(ada)

    made = client.send("POST", "/datasets", {"name": "x", "path": str(data / "text.txt")})
    beside = client.send("POST", "/datasets", {"name": "y", "path": f"{data}/../other"})
    led_out = client.send("POST", "/datasets", {"name": "z", "path": str(data / "out")})

    assert made.status_code == 201, made.content
    assert (made.json()["root"], made.json()["path"]) == ("data", "text.txt")
    assert (beside.status_code, led_out.status_code) == (403, 403)


@pytest.mark.parametrize("where", ["nothing", "home", "/", "nul", "surrogate"])
def test_a_root_that_cannot_be_is_refused_beside_the_path(where, tmp_path, db, home, client_of, root):
    paths = {"nothing": str(tmp_path / "nope"), "home": str(home.root), "/": "/", "nul": "/a\0b"}
    paths["surrogate"] = "/a\ud800"

    body = json.dumps({"name": "x", "path": paths[where]}).encode()

    answer = client_of(root).send("POST", "/datasets", body)

    assert answer.status_code in {400, 422}
    assert list(answer.json()["errors"]) == ["path"]
    assert not DatasetRoot.objects.exists()


def test_b35_a_link_out_of_the_root_is_refused(data, ada):
    (data / "out").symlink_to("/etc")

    with pytest.raises(Malformed, match="leads out"):
        datasets.register(ada, name="out", root="data", path="out")


def test_b36_a_link_swapped_in_after_the_check_is_refused_at_use(data, digits):
    assert datasets.checked_path(digits) == (data / "digits").resolve()
    (data / "digits").rename(data / "gone")
    (data / "digits").symlink_to("/etc")

    with pytest.raises(Malformed, match="leads out"):
        datasets.checked_path(digits)


def test_a_link_within_the_root_is_followed_to_its_end(data, ada):
    (data / "latest").symlink_to("digits")

    dataset = datasets.register(ada, name="latest", root="data", path="latest")

    assert datasets.checked_path(dataset) == (data / "digits").resolve()


def test_what_is_gone_says_whether_root_or_data_is_missing(data, digits, client_of, ada):
    (data / "digits" / "train.bin").unlink()
    (data / "digits").rmdir()
    with pytest.raises(Impossible):
        datasets.checked_path(digits)
    assert client_of(ada).send("GET", "/datasets/digits").json()["available"] is False
    data.rename(data.with_name("unmounted"))
    with pytest.raises(Unavailable):
        datasets.checked_path(digits)


def test_a_device_file_is_no_dataset(data, ada):
    os.mkfifo(data / "pipe")

    with pytest.raises(Impossible, match="neither"):
        datasets.register(ada, name="pipe", root="data", path="pipe")


@pytest.mark.parametrize("closed", ["digits/train.bin", "digits/inner/deep.bin", "digits/inner"])
def test_a_file_that_berth_may_not_read_is_named_and_422(closed, data, client_of, ada, as_ordinary_user):
    (data / "digits" / "inner").mkdir()
    (data / "digits" / "inner" / "deep.bin").write_bytes(b"x")
    (data / closed).chmod(0o000)

    client = client_of(ada)
    with as_ordinary_user():
        answer = client.send("POST", "/datasets", {"name": "x", "root": "data", "path": "digits"})
    (data / closed).chmod(0o700)

    assert answer.status_code == 422
    assert closed in answer.json()["errors"]["path"][0]
    assert not Dataset.objects.exists()


def test_folder_above_that_lets_nobody_in_is_named_at_registration_and_at_submit(
    data, digits, ada, make_device, as_ordinary_user
):
    make_device()
    spec = JobSpec.model_validate({"datasets": ["digits"]})
    checks.resolve(ada, spec)
    server = pwd.getpwuid(NOBODY if os.geteuid() == 0 else os.geteuid()).pw_name
    with as_ordinary_user():
        data.chmod(0o600)
        with pytest.raises(Impossible) as registration:
            datasets.register(ada, name="x", root="data", path="digits")
        with pytest.raises(Impossible) as submit:
            checks.resolve(ada, spec)
        data.chmod(0o700)
        assert checks.resolve(ada, spec).datasets == ["digits@1"]

    (sentence,) = registration.value.fields["path"]
    who = f"This server's user ({server}) cannot read"
    assert sentence.startswith(f"{who} {data}: it is {server}'s with mode 0600. Ask ")
    assert sentence.endswith(f"berth data push NAME {data}")
    (sentence,) = submit.value.fields["datasets"]
    assert sentence.startswith(
        f"{who} {data / 'digits'}: {data} is {server}'s with mode 0600. Ask {server} to let"
    )
    assert re.search(rf"\(chmod [go]\+x {data}\)", sentence)


@pytest.mark.parametrize(
    "path", ["/proc", "/proc/self", "/sys", "/sys/devices", "/dev/pts", "/proc/self/environ"]
)
@pytest.mark.parametrize("is_link", [False, True])
def test_what_the_kernel_tells_is_no_dataset(path, is_link, tmp_path, db, home, client_of, root):
    if is_link:
        (tmp_path / "link").symlink_to(path)
        path = str(tmp_path / "link")

    answer = client_of(root).send("POST", "/datasets", {"name": "x", "path": path})

    assert answer.status_code == 422, answer.content
    assert "file system of the kernel" in answer.json()["errors"]["path"][0]
    assert not DatasetRoot.objects.exists()


def test_a_root_on_the_kernels_files_that_is_there_already_serves_nothing(db, home, client_of, ada):
    DatasetRoot.objects.create(name="proc", path="/proc")

    answer = client_of(ada).send("POST", "/datasets", {"name": "x", "root": "proc", "path": "version"})

    assert answer.status_code == 422


@pytest.mark.parametrize("where", ["data", "data/inner"])
def test_the_kernels_files_are_found_behind_a_bind_mount(where, tmp_path):
    (tmp_path / "data" / "inner").mkdir(parents=True)
    bubblewrap = shutil.which("bwrap") or lacking("bubblewrap is not installed")
    command = [bubblewrap, "--bind", "/", "/", "--dev-bind", "/proc", str(tmp_path / where)]

    done = subprocess.run(
        [*command, sys.executable, "-c", PROBE, str(tmp_path / "data")],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "file system of the kernel (proc)" in done.stdout, done.stderr


def test_a_reference_without_version_means_the_newest(data, digits, ada):
    newer = datasets.register(ada, name="digits", version="2", root="data", path="text.txt")

    assert datasets.resolve("digits", ada) == newer
    assert datasets.resolve("digits@1", ada) == digits


@pytest.mark.parametrize("reference", ["letters", "digits@9"])
def test_an_unknown_reference_is_impossible(reference, digits, ada):
    with pytest.raises(Impossible, match="no dataset"):
        datasets.resolve(reference, ada)


def test_a_version_is_registered_once_and_a_name_belongs_to_its_first_owner(digits, ada, bob, root):
    with pytest.raises(Conflict):
        datasets.register(ada, name="digits", root="data", path="text.txt")
    with pytest.raises(Forbidden):
        datasets.register(bob, name="digits", version="2", root="data", path="text.txt")
    assert datasets.register(root, name="digits", version="2", root="data", path="text.txt")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a/b", "root": "data", "path": "text.txt"},
        {"name": "a@b", "root": "data", "path": "text.txt"},
        {"name": "", "root": "data", "path": "text.txt"},
        {"name": "x" * 65, "root": "data", "path": "text.txt"},
        {"name": "x", "version": "1 2", "root": "data", "path": "text.txt"},
        {"name": "x", "root": "data", "path": "text.txt", "sha256": "0"},
        {"name": "x", "root": "data", "path": "text.txt", "description": "a\x1b[31mb"},
        {"name": "x", "root": "data"},
    ],
)
def test_b37_datasets_that_are_none_are_400(body, data, client_of, ada):
    assert client_of(ada).send("POST", "/datasets", body).status_code == 400


def test_an_unknown_root_or_missing_file_is_422(data, client_of, ada):
    client = client_of(ada)

    assert client.send("POST", "/datasets", {"name": "x", "root": "nope", "path": "a"}).status_code == 422
    assert client.send("POST", "/datasets", {"name": "x", "root": "data", "path": "nope"}).status_code == 422


def test_datasets_are_listed_and_found_for_everybody(digits, client_of, bob):
    client = client_of(bob)

    assert client.send("GET", "/datasets").json()["results"][0]["reference"] == "digits@1"
    assert client.send("GET", "/datasets/digits@1").json()["path"] == "digits"
    for name in ("letters", "digits@2", "..", "a b"):
        assert client.send("GET", f"/datasets/{name}").status_code == 404
