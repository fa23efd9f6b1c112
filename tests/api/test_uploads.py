"""Pushed data: sent in parts, kept once by content, for its owner alone."""

import dataclasses
import hashlib
import os
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.exceptions import Impossible
from orchestrator.jobs import datasets, pushing, shelves
from orchestrator.jobs.submission import checks
from orchestrator.models import Dataset, DatasetRoot, Job, JobState
from orchestrator.spec.job_spec import JobSpec
from tests.jobs.races import race


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Pusher:
    """A person's client that pushes files held in memory."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.sent: list[str] = []  # paths, once for each part

    def ask(self, name: str, files: dict[str, bytes], *, knows_sums: bool = True, **fields: object) -> Any:
        listed = [
            [path, len(content), sha256(content) if knows_sums else "", "" if knows_sums else "monday"]
            for path, content in files.items()
        ]
        return self.client.send("POST", "/uploads", {"name": name, "files": listed, **fields})

    def send(self, missing: dict[str, Any], offset: int, data: bytes, content: bytes, **query: object) -> Any:
        fields = {"offset": offset, "size_bytes": len(content), "part_sha256": sha256(data), **query}
        address = f"/uploads/{missing['key']}?" + "&".join(
            f"{name}={value}" for name, value in fields.items()
        )
        self.sent.append(missing["path"])
        return self.client.send("PUT", address, data)

    def push(self, name: str, files: dict[str, bytes], **fields: Any) -> dict[str, Any]:
        answer = self.ask(name, files, **fields)
        assert answer.status_code == 200, answer.content
        for missing in answer.json()["missing"]:
            content = files[missing["path"]]
            done = self.send(missing, missing["sent_bytes"], content[missing["sent_bytes"] :], content)
            assert done.json() == {"sent_bytes": len(content)}, done.content
        dataset: dict[str, Any] = self.ask(name, files, **fields).json()["dataset"]
        return dataset


@pytest.fixture
def adas(home, client_of, ada) -> Pusher:
    return Pusher(client_of(ada))


@pytest.fixture
def bobs(home, client_of, bob) -> Pusher:
    return Pusher(client_of(bob))


FILES = {"train.bin": b"0123456789", "more/test.bin": b"abc", "empty": b""}


def contents(path: Path) -> dict[str, bytes]:
    return {
        each.relative_to(path).as_posix(): each.read_bytes() for each in path.rglob("*") if each.is_file()
    }


@pytest.mark.parametrize("knows_sums", [True, False])
def test_pushed_folder_is_a_dataset_of_its_owner_that_jobs_read(adas, ada, make_device, knows_sums):
    make_device()

    shown = adas.push("digits", FILES, knows_sums=knows_sums)

    assert (shown["reference"], shown["pushed"], shown["size_bytes"]) == ("ada/digits@1", True, 13)
    spec = checks.resolve(ada, JobSpec.model_validate({"datasets": ["digits"]}))
    assert spec.datasets == ["ada/digits@1"]
    assert contents(datasets.checked_path(datasets.resolve(spec.datasets[0], ada))) == FILES


def test_pushed_file_is_the_dataset_itself(adas, ada):
    adas.push("numbers", {"numbers.csv": b"1,2"}, is_file=True)

    path = datasets.checked_path(datasets.resolve("numbers", ada))
    assert (path.name, path.read_bytes()) == ("numbers.csv", b"1,2")


def test_unchanged_files_are_not_sent_again_and_unchanged_data_is_no_new_version(adas):
    adas.push("digits", FILES)
    assert adas.push("digits", FILES)["version"] == "1"
    adas.sent.clear()

    second = adas.push("digits", {**FILES, "train.bin": b"changed"})

    assert second["version"] == "2"
    assert adas.sent == ["train.bin"]
    assert adas.push("other", FILES)["reference"] == "ada/other@1"
    assert adas.sent == ["train.bin"]


def test_part_whose_answer_was_lost_may_be_sent_again_and_the_rest_follows(adas):
    content = os.urandom(3000)
    files = {"a.bin": content}
    missing = adas.ask("a", files).json()["missing"][0]

    assert adas.send(missing, 0, content[:1000], content).json() == {"sent_bytes": 1000}
    assert adas.send(missing, 0, content[:1000], content).json() == {"sent_bytes": 1000}
    assert adas.send(missing, 2000, content[2000:], content).json() == {"sent_bytes": 1000}
    assert adas.ask("a", files).json()["missing"][0]["sent_bytes"] == 1000
    assert adas.send(missing, 1000, content[1000:], content).json() == {"sent_bytes": 3000}
    assert adas.ask("a", files).json()["dataset"]["size_bytes"] == 3000


def test_part_that_came_damaged_and_file_that_is_another_are_refused(adas):
    files = {"a.bin": b"agreed"}
    missing = adas.ask("a", files).json()["missing"][0]

    damaged = adas.send(missing, 0, b"damage", b"damage", part_sha256=sha256(b"agreed"))
    other = adas.send(missing, 0, b"others", b"others", sha256=sha256(b"agreed"))

    assert (damaged.status_code, other.status_code) == (400, 400)
    assert "came damaged" in damaged.json()["detail"]
    assert "send it again from its beginning" in other.json()["detail"]
    assert adas.ask("a", files).json()["missing"][0]["sent_bytes"] == 0


def test_only_what_was_announced_may_be_sent(adas, bobs):
    missing = adas.ask("a", {"a.bin": b"content"}).json()["missing"][0]

    assert bobs.send(missing, 0, b"content", b"content").status_code == 404
    assert adas.send({"key": "0" * 64, "path": ""}, 0, b"x", b"x").status_code == 404
    assert adas.send({"key": "..", "path": ""}, 0, b"x", b"x").status_code == 404
    too_large = adas.send(missing, 0, bytes(pushing.PART_BYTES + 1), b"x")
    assert too_large.status_code == 413


def test_push_beyond_the_quota_says_what_takes_the_room(adas, settings, monkeypatch):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, user_data_gib=1)
    monkeypatch.setattr(shelves, "GIB", 1000)
    adas.push("old", {"a": b"x" * 800})

    answer = adas.ask("new", {"a": b"x" * 800, "b": b"y" * 300})

    assert answer.status_code == 413
    sentence = answer.json()["detail"]
    assert sentence.startswith(
        "This needs 300 bytes; of your 1000 bytes for pushed data 800 bytes are in use, most by old@1"
    )
    assert "berth data rm NAME" in sentence
    adas.client.send("DELETE", "/datasets/old")
    assert adas.push("new", {"b": b"y" * 300})["size_bytes"] == 300


def test_more_than_the_quota_is_refused_whatever_was_announced(adas, settings, monkeypatch):
    """The size of a part's file is the sender's word, and several pushes may be announced at once."""
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, user_data_gib=1)
    monkeypatch.setattr(shelves, "GIB", 1000)
    content = b"x" * 900
    first, second = (adas.ask(name, {f"{name}.bin": content + name.encode()}).json() for name in ("a", "b"))

    begun = adas.send(first["missing"][0], 0, content, content + b"a")
    refused = adas.send(second["missing"][0], 0, content, content + b"b")

    assert begun.json() == {"sent_bytes": 900}
    assert refused.status_code == 413
    assert adas.ask("c", {"c.bin": content}).status_code == 413


def test_pushed_data_is_seen_by_its_owner_and_admins_alone(
    adas, bobs, ada, bob, root, client_of, make_device
):
    make_device()
    adas.push("digits", FILES)

    assert bobs.client.send("GET", "/datasets").json()["results"] == []
    assert bobs.client.send("GET", "/datasets/ada/digits").status_code == 404
    assert bobs.client.send("DELETE", "/datasets/ada/digits").status_code == 404
    assert bobs.client.send("GET", "/search?q=digits").json()["results"] == []
    assert client_of(root).send("GET", "/datasets/ada/digits").json()["owner"] == "ada"
    for reference in ("digits", "ada/digits@1"):
        with pytest.raises(Impossible, match="There is no dataset"):
            checks.resolve(bob, JobSpec.model_validate({"datasets": [reference]}))
    assert bobs.push("digits", {"mine": b"bob's"})["reference"] == "bob/digits@1"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/uploads"), ("POST", "/uploads"), ("PUT", f"/uploads/{'0' * 64}")]
)
def test_uploads_need_a_person_who_may_write(method, path, anonymous, client_of, ada):
    assert anonymous.send(method, path, {}).status_code == 401
    assert client_of(ada, "read").send(method, path, {}).status_code == (200 if method == "GET" else 403)


def test_removed_data_frees_its_room_but_for_files_of_other_versions(adas, home, ada):
    adas.push("digits", FILES)
    adas.push("digits", {**FILES, "train.bin": b"changed"})

    assert adas.client.send("DELETE", "/datasets/digits@1").status_code == 204

    assert contents(datasets.checked_path(datasets.resolve("digits", ada)))["more/test.bin"] == b"abc"
    assert adas.client.send("GET", "/uploads").json()["used_bytes"] == len(b"changed") + len(b"abc")
    assert adas.client.send("DELETE", "/datasets/digits").status_code == 204
    assert not Dataset.objects.exists()
    assert list(home.pushed.glob("*/contents/*")) == list(home.pushed.glob("*/sets/*/*")) == []


def test_data_that_an_unfinished_job_names_is_not_removed(adas, ada, make_job):
    adas.push("digits", FILES)
    job = make_job(spec={"datasets": ["ada/digits@1"]})

    answer = adas.client.send("DELETE", "/datasets/digits")

    assert answer.status_code == 409
    assert "cancel it, or wait for its end" in answer.json()["detail"]
    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED)
    assert adas.client.send("DELETE", "/datasets/digits").status_code == 204


def test_removed_registration_leaves_the_files_where_they_are(adas, bobs, ada, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("abc")
    DatasetRoot.objects.create(name="data", path=str(tmp_path / "data"))
    datasets.register(ada, name="letters", root="data", path="a.txt")

    assert bobs.client.send("DELETE", "/datasets/letters").status_code == 403
    assert adas.client.send("DELETE", "/datasets/letters").status_code == 204

    assert (tmp_path / "data" / "a.txt").read_text() == "abc"
    assert adas.client.send("GET", "/datasets/letters").status_code == 404


def test_name_of_a_registered_dataset_cannot_be_pushed_and_its_path_is_found(adas, ada, root, tmp_path):
    (tmp_path / "data").mkdir()
    datasets.register(root, name="digits", path=str(tmp_path / "data"), may_add_root=True)

    assert adas.ask("digits", FILES).status_code == 409
    found = adas.client.send("GET", f"/datasets?path={tmp_path / 'data'}").json()["results"]
    assert [each["reference"] for each in found] == ["digits@1"]
    assert adas.client.send("GET", f"/datasets?path={tmp_path}").json()["results"] == []


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/x",
        "a/../../x",
        "a\\b",
        "a\nb",
        "",
        "a//b",
        "x" * 900,
        "x" * 256,
        "d/" + "\u00e9" * 128,
        "train.bin/x",
    ],
)
def test_paths_that_leave_the_dataset_are_malformed(adas, path, home):
    answer = adas.ask("digits", {"train.bin": b"x", path: b"y"})

    assert answer.status_code == 400
    assert not home.pushed.exists()


def test_version_with_other_content_is_refused(adas):
    assert adas.push("digits", FILES, version="v1")["version"] == "v1"

    assert adas.ask("digits", {"empty": b""}, version="v1").status_code == 409
    assert adas.push("digits", FILES, version="v1")["version"] == "v1"


def test_parts_that_nobody_goes_on_with_are_removed_and_datasets_are_not(adas, home, ada):
    adas.push("digits", FILES)
    missing = adas.ask("large", {"a": b"x" * 100}).json()["missing"][0]
    adas.send(missing, 0, b"x" * 50, b"x" * 100)

    shelves.sweep(timezone.now())
    assert adas.ask("large", {"a": b"x" * 100}).json()["missing"][0]["sent_bytes"] == 50
    shelves.sweep(timezone.now() + timedelta(days=8))
    assert adas.ask("large", {"a": b"x" * 100}).json()["missing"][0]["sent_bytes"] == 0
    assert contents(datasets.checked_path(datasets.resolve("digits", ada))) == FILES


@pytest.mark.django_db(transaction=True)
def test_pushes_of_one_name_at_once_make_versions_of_their_own_content(adas, home, ada):
    sets = {
        "left": {f"{each}": b"left%d" % each for each in range(30)},
        "right": {f"{each}": b"right%d" % each for each in range(30)},
    }
    for name, files in sets.items():
        adas.push(name, files)

    def keep(name: str, number: int) -> None:
        listed = [(path, sha256(content)) for path, content in sorted(sets[name].items())]
        files = [pushing.PushedFile(path, len(sets[name][path]), digest, "") for path, digest in listed]
        pushing.push(ada, name=f"both{number}", version=None, description="", files=files, is_file=False)

    raised = race(partial(keep, "left"), partial(keep, "right"), count=10)

    assert raised == []
    made = Dataset.objects.filter(name__startswith="both")
    assert made.count() == 20
    for dataset in made:
        found = contents(datasets.checked_path(dataset))
        assert found in sets.values()
        listed = [(path, sha256(content)) for path, content in sorted(found.items())]
        assert dataset.sha256 == pushing.digest_of(listed)


@pytest.mark.slow
def test_content_with_as_many_names_as_the_disk_allows_is_pushed_again(adas, home, ada):
    adas.push("labels", {"empty": b""})
    (content,) = shelves.shelf_of(ada).contents.iterdir()
    names = home.root / "names"
    names.mkdir()
    for number in range(70_000):  # more than ext4 allows; other file systems take them all
        try:
            os.link(content, names / str(number))
        except OSError:
            break

    adas.push("labels", {"empty": b"", "another": b""})

    assert contents(datasets.checked_path(datasets.resolve("labels", ada))) == {"empty": b"", "another": b""}
    assert len(list(content.parent.iterdir())) == 1


def test_push_that_the_disk_refuses_leaves_nothing_behind(adas, home, ada):
    adas.push("digits", FILES)
    shelf = shelves.shelf_of(ada)

    with pytest.raises(OSError, match="File name too long"):
        pushing.keep(ada, "long", None, "", [("a", sha256(b"")), ("b" * 300, sha256(b""))], 0, is_file=False)

    assert not list((shelf.root / "made").iterdir())


def test_part_does_not_count_all_that_its_owner_has(adas, ada, settings):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, user_data_gib=1000)
    files = {f"{each}.txt": b"%d" % each for each in range(40)}
    missing = adas.ask("digits", files).json()["missing"]
    for number in range(20_000):
        (shelves.shelf_of(ada).contents / f"{number}").touch()

    before_s = time.process_time()
    for each in missing:
        content = files[each["path"]]
        pushing.take_part(ada, each["key"], 0, len(content), sha256(content), content, "")

    assert time.process_time() - before_s < 1.5
