"""Container images of jobs: fetched from a registry or from files of the server, laid out, and started."""

import base64
import copy
import dataclasses
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs.environments import building, preparing, requests
from orchestrator.jobs.environments.declared import Declared
from orchestrator.jobs.environments.images import asking
from orchestrator.jobs.environments.images.layers import CannotGet, Room, Rootfs, without_zstd
from orchestrator.jobs.launch import driver, images, isolation, launcher
from orchestrator.jobs.launch.start import CannotLaunch, Started
from orchestrator.models import Environment, EnvironmentState, ExitKind, Job, JobState
from orchestrator.sentences import say
from orchestrator.spec.images import read_image
from orchestrator.store.layout import Home
from orchestrator.supervisor.protocol.records import read_record
from tests.conftest import lacking
from tests.images import Image, Registry, make_root, pack, pack_by_zstd, serve_registry
from tests.waiting import wait_until

SAY = b"import os\nprint('in', open('/etc/os-release').read().strip(), os.environ['MADE_BY'], os.environ['RANK'])\n"


@pytest.fixture
def sandbox() -> None:
    if not isolation.level():
        lacking("bubblewrap does not work here")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image([pack(make_root(tmp_path_factory.mktemp("plain") / "rootfs"))])


@pytest.fixture(scope="module")
def with_python(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image([pack(make_root(tmp_path_factory.mktemp("python") / "rootfs", python=True))])


@pytest.fixture
def allow(home, settings, sandbox) -> Callable[..., None]:
    """Change settings of the server."""

    def change(**fields: Any) -> None:
        settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, **fields)

    change(data_allow=("127.0.0.1",))
    return change


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serve_registry() as serving:
        yield serving


def prepared(name: str) -> Environment:
    """The row of an image after it was fetched."""
    row = requests.row_for(Declared(name, image=name), timezone.now())
    preparing.prepare(row.pk)
    row.refresh_from_db()
    return row


def write_archive(path: Path, config: bytes, *layers: bytes) -> Path:
    """A file as ``docker save`` writes it, with any configuration and layers."""
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    rows = {"manifest.json": manifest, "config.json": config, **dict(zip(names, layers, strict=True))}
    with tarfile.open(path, "w") as archive:
        for name, data in rows.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def failure(row: Environment) -> str:
    assert row.state == EnvironmentState.FAILED, row.why
    return say(Fact.read(row.why))


@pytest.mark.django_db(transaction=True)
def test_image_of_a_registry_is_laid_out_by_its_digest_with_its_variables_and_packages(
    allow, registry, with_python, home
):
    registry.images["lab/train:1"] = with_python

    row = prepared(registry.name("lab/train:1"))

    assert row.state == EnvironmentState.READY, row.why
    found = images.read(row.key)
    assert (row.lock, found.digest) == (with_python.digest, with_python.digest)
    assert (found.root / "etc/os-release").read_text() == "NAME=tiny\n"
    assert (found.root / "bin").readlink() == Path("usr/bin")
    assert (found.env["MADE_BY"], found.python, found.has_torch) == ("tests", "/usr/bin/python3", False)
    assert {each["name"] for each in row.packages} >= {"python"}
    assert "layer 1 of 1" in home.environments.log(row.pk).read_text()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["oci", "docker-archive"])
def test_image_may_be_a_file_of_the_server_in_a_folder_that_is_allowed(allow, plain, tmp_path, kind):
    folder = tmp_path / "images"
    folder.mkdir()
    write = plain.write_layout if kind == "oci" else plain.write_docker_archive
    name = f"{kind}:{write(folder / 'tiny')}"

    refused = failure(prepared(name))
    allow(image_folders=(folder,))
    row = prepared(name)

    assert "is in no folder that images may come from" in refused
    assert row.state == EnvironmentState.READY, row.why
    assert (images.read(row.key).root / "usr/bin/sh").is_file()


@pytest.mark.django_db(transaction=True)
def test_archive_that_names_the_manifest_of_another_image_takes_neither_its_place_nor_its_jobs(
    allow, registry, plain, tmp_path
):
    registry.images["lab/train:1"] = plain
    (tmp_path / "other").mkdir()
    (tmp_path / "other/own").write_text("not theirs")
    forged = tmp_path / "images/forged.tar"
    forged.parent.mkdir()
    write_archive(forged, plain.manifest, pack(tmp_path / "other", zipped=False))
    allow(image_folders=(forged.parent,))

    refused = failure(prepared(f"docker-archive:{forged}"))
    row = prepared(registry.name("lab/train:1"))

    assert "does not have the number of layers" in refused
    assert not (images.read(row.key).root / "own").exists()


@pytest.mark.django_db(transaction=True)
def test_image_of_a_file_and_one_of_a_registry_share_no_place_even_with_one_digest(
    allow, registry, plain, tmp_path
):
    registry.images["lab/train:1"] = plain
    allow(image_folders=(tmp_path,))

    rows = [prepared(registry.name("lab/train:1")), prepared(f"oci:{plain.write_layout(tmp_path / 'tiny')}")]

    assert rows[0].lock == rows[1].lock
    assert rows[0].key != rows[1].key


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("diff_ids", [["sha256:" + "0" * 64], [], None])
def test_archive_whose_layers_are_not_those_of_its_configuration_is_refused(allow, tmp_path, diff_ids):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a").write_text("1")
    image = Image([pack(tmp_path / "files")], diff_ids=diff_ids)
    if diff_ids is None:
        config = json.loads(image.blobs[image.config])
        del config["rootfs"]
        image.blobs[image.config] = json.dumps(config).encode()
    allow(image_folders=(tmp_path,))

    said = failure(prepared(f"docker-archive:{image.write_docker_archive(tmp_path / 'tiny.tar')}"))

    assert "layer" in said


@pytest.mark.django_db(transaction=True)
def test_archive_with_packed_layers_is_known_by_what_they_unpack_to(allow, plain, tmp_path):
    packed = plain.blobs[plain.layers[0]]
    name = f"docker-archive:{write_archive(tmp_path / 'tiny.tar', plain.blobs[plain.config], packed)}"
    allow(image_folders=(tmp_path,))

    row = prepared(name)

    assert row.state == EnvironmentState.READY, row.why
    assert (row.lock, (images.read(row.key).root / "usr/bin/sh").is_file()) == (plain.config, True)


@pytest.mark.django_db(transaction=True)
def test_image_whose_layers_are_packed_with_zstd_is_laid_out_from_a_registry_and_a_file(
    allow, registry, plain, tmp_path
):
    image = Image([pack_by_zstd(plain.blobs[plain.layers[0]])])
    registry.images["lab/train:1"] = image
    packed = image.blobs[image.layers[0]]
    name = f"docker-archive:{write_archive(tmp_path / 'tiny.tar', image.blobs[image.config], packed)}"
    allow(image_folders=(tmp_path,))

    for row in (prepared(registry.name("lab/train:1")), prepared(name)):
        assert row.state == EnvironmentState.READY, row.why
        assert (images.read(row.key).root / "usr/bin/sh").is_file()


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: data[:4] + data[40:]])
def test_layer_of_zstd_that_is_damaged_is_refused_as_none(rootfs, damage):
    data = damage(pack_by_zstd(layer(("f", "a", "1"), ("f", "b", "2")).read()))

    with pytest.raises(CannotGet, match="A layer cannot be unpacked"):
        rootfs.lay(without_zstd(io.BufferedReader(io.BytesIO(data))))


@pytest.mark.django_db(transaction=True)
def test_link_in_an_allowed_folder_leads_nowhere_else(allow, plain, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/tiny").symlink_to(plain.write_layout(tmp_path / "elsewhere"))
    allow(image_folders=(tmp_path / "images",))

    assert "is in no folder" in failure(prepared(f"oci:{tmp_path}/images/tiny"))


@pytest.mark.django_db(transaction=True)
def test_registry_without_the_image_says_so(allow, registry, plain):
    registry.images["lab/train:1"] = plain

    sentence = failure(prepared(registry.name("lab/train:2")))

    name = registry.name("lab/train:2")
    host = registry.name("").rstrip("/")
    assert sentence == (f"There is no image {name}. {host} has no lab/train 2. Check its name and its tag.")


@pytest.mark.django_db(transaction=True)
def test_registry_that_wants_a_login_gets_the_operators(allow, registry, plain, tmp_path):
    registry.images["lab/train:1"], registry.needs_login = plain, "berth:s3cret"

    refused = failure(prepared(registry.name("lab/train:1")))
    logins = tmp_path / "logins.json"
    host = registry.name("").rstrip("/")
    logins.write_text(json.dumps({"auths": {host: {"auth": base64.b64encode(b"berth:s3cret").decode()}}}))
    allow(image_logins=logins)

    assert "is not open to this server" in refused
    assert prepared(registry.name("lab/train:1")).state == EnvironmentState.READY


@pytest.mark.django_db(transaction=True)
def test_registry_in_the_servers_own_network_is_not_reached(allow, registry, plain):
    registry.images["lab/train:1"] = plain
    allow(data_allow=())

    assert "is in the server's own network" in failure(prepared(registry.name("lab/train:1")))
    assert registry.asked == []


@pytest.mark.django_db(transaction=True)
def test_registry_that_does_not_answer_is_asked_again_later(allow, registry, plain):
    registry.images["lab/train:1"], registry.statuses = plain, {"manifests": 503}

    row = prepared(registry.name("lab/train:1"))

    assert (row.state, row.tries) == (EnvironmentState.WAITING, 1)
    assert row.next_try_at is not None
    assert "answered 503" in say(Fact.read(row.why))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("part", ["blobs", "manifests"])
def test_line_that_breaks_is_the_networks_failure_and_tried_again(allow, registry, plain, part):
    registry.images["lab/train:1"], registry.breaks = plain, {part: 99}

    row = prepared(registry.name("lab/train:1"))
    broken = (row.state, row.tries, Fact.read(row.why).facts["cause"])
    registry.breaks = {part: 1} if part == "blobs" else {}
    preparing.prepare(row.pk)
    row.refresh_from_db()

    assert broken == (EnvironmentState.WAITING, 1, "network")
    assert row.state == EnvironmentState.READY, row.why


def test_layer_with_files_below_a_file_is_refused_as_none(rootfs):
    with pytest.raises(CannotGet) as refused:
        rootfs.lay(layer(("f", "a", "1"), ("f", "a/b/c", "2")))

    assert refused.value.cause == "format"


@pytest.mark.django_db(transaction=True)
def test_image_behind_an_index_within_an_index_is_found(allow, registry, plain):
    nested = copy.deepcopy(plain)
    nested.nest(2)
    registry.images["lab/train:1"] = nested

    row = prepared(registry.name("lab/train:1"))

    assert (row.state, row.lock) == (EnvironmentState.READY, plain.digest), row.why


@pytest.mark.django_db(transaction=True)
def test_image_behind_more_indexes_than_anybody_needs_is_refused(allow, registry, plain):
    nested = copy.deepcopy(plain)
    nested.nest(3)
    registry.images["lab/train:1"] = nested

    assert "more than 3 indexes" in failure(prepared(registry.name("lab/train:1")))


@pytest.mark.django_db
@pytest.mark.parametrize(("cause", "lock"), [("changed", ""), ("missing", ""), ("network", "sha256:old")])
def test_clone_of_an_image_that_is_no_longer_to_be_had_takes_what_its_name_leads_to_now(cause, lock):
    row = requests.row_for(Declared("lab/train:1", image="lab/train:1"), timezone.now())
    why = fact(Ended.IMAGE_FAILED, cause=cause, image=row.image, message="")
    row.state, row.lock, row.why = EnvironmentState.FAILED, "sha256:old", why.as_json()
    row.save()

    assert requests.again(row, timezone.now()).lock == lock


@pytest.mark.django_db(transaction=True)
def test_image_for_other_processors_is_refused(allow, registry, tmp_path):
    registry.images["lab/train:1"] = Image([pack(make_root(tmp_path / "rootfs"))], architecture="s390x")

    assert "does not run on this server" in failure(prepared(registry.name("lab/train:1")))


@pytest.mark.django_db(transaction=True)
def test_job_that_runs_again_gets_the_digest_that_it_had(allow, registry, plain, tmp_path, home):
    registry.images["lab/train:1"] = plain
    row = prepared(registry.name("lab/train:1"))
    (tmp_path / "more").mkdir()
    (tmp_path / "more/new").write_text("")
    newer = Image([pack(make_root(tmp_path / "rootfs")), pack(tmp_path / "more")])
    newer.blobs |= plain.blobs  # a registry keeps what a tag led to
    registry.images["lab/train:1"] = newer
    building.clear(home.environments.built(row.key).root)

    preparing.sweep(timezone.now() + timedelta(minutes=1))
    Environment.objects.filter(pk=row.pk).update(state=EnvironmentState.WAITING)
    preparing.prepare(row.pk)

    row.refresh_from_db()
    assert (row.state, row.lock) == (EnvironmentState.READY, plain.digest), row.why
    assert images.read(row.key).digest == plain.digest


def test_larger_image_than_there_is_room_for_is_refused(tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "big/zeros").write_bytes(bytes(200_000))
    rootfs = Rootfs(tmp_path / "rootfs", Room(100_000))
    rootfs.root.mkdir()

    with pytest.raises(CannotGet, match="It has more than") as refused:
        rootfs.lay(io.BytesIO(pack(tmp_path / "big")))

    assert refused.value.cause == "size"


def layer(*members: tuple[str, str, str]) -> io.BytesIO:
    """A layer of files ("f", name, text), folders ("d"), links ("l") and hard links ("h")."""
    kinds = {"f": tarfile.REGTYPE, "d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for kind, name, text in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kinds[kind], 0o4755
            if kind in "lh":
                info.linkname = text
            info.size = len(text) if kind == "f" else 0
            archive.addfile(info, io.BytesIO(text.encode()) if kind == "f" else None)
    return io.BytesIO(data.getvalue())


@pytest.fixture
def rootfs(tmp_path: Path) -> Rootfs:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("kept")
    (tmp_path / "image/rootfs").mkdir(parents=True)
    return Rootfs(tmp_path / "image/rootfs", Room(1 << 20))


def test_later_layer_hides_and_replaces_what_lies_below(rootfs):
    rootfs.lay(
        layer(("d", "a", ""), ("f", "a/old", "1"), ("f", "a/both", "1"), ("f", "b", "1"), ("d", "c", ""))
    )
    rootfs.lay(layer(("f", "a/both", "2"), ("f", ".wh.b", ""), ("f", "c", "file")))
    rootfs.lay(layer(("d", "a", ""), ("f", "a/new", "3"), ("f", "a/.wh..wh..opq", "")))

    assert sorted(path.name for path in rootfs.root.rglob("*")) == ["a", "c", "new"]
    assert (rootfs.root / "c").read_text() == "file"
    assert (rootfs.root / "a/new").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "members",
    [
        [("f", "../outside/kept", "x")],
        [("f", "a/../../../outside/kept", "x")],
        [("h", "mine", "../../outside/kept")],
        [("h", "mine", "/../outside/kept")],
        [("l", "a", "{outside}"), ("h", "mine", "a/kept")],
    ],
)
def test_layer_that_leads_out_of_its_image_is_refused(rootfs, tmp_path, members):
    outside = str(tmp_path / "outside")

    with pytest.raises(CannotGet):
        rootfs.lay(layer(*((kind, name, text.replace("{outside}", outside)) for kind, name, text in members)))

    assert (tmp_path / "outside/kept").read_text() == "kept"


def test_links_of_a_layer_are_followed_inside_of_the_image_alone(rootfs, tmp_path):
    rootfs.lay(
        layer(("l", "lib", "usr/lib"), ("l", "up", "../../outside"), ("l", "abs", str(tmp_path / "outside")))
    )
    rootfs.lay(layer(("f", "lib/a", "1"), ("f", "up/kept", "2"), ("f", "abs/kept", "3"), ("f", ".wh...", "")))

    assert (rootfs.root / "usr/lib/a").read_text() == "1"
    assert (rootfs.root / "outside/kept").read_text() == "2"
    assert (tmp_path / "outside/kept").read_text() == "kept"


def with_program(plain: Image, tmp_path: Path, script: str) -> Image:
    """An image whose Python is a script of the shell."""
    program = tmp_path / "program/usr/bin/python3"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Image([plain.blobs[plain.layers[0]], pack(tmp_path / "program")])


@pytest.mark.django_db(transaction=True)
def test_python_of_an_image_that_answers_nonsense_counts_as_none_and_the_image_is_ready(
    allow, registry, plain, tmp_path
):
    registry.images["lab/train:1"] = with_program(plain, tmp_path, "echo 5")

    row = prepared(registry.name("lab/train:1"))

    assert (row.state, row.packages, images.read(row.key).python) == (EnvironmentState.READY, [], "")


@pytest.mark.django_db(transaction=True)
def test_packages_of_an_image_with_names_that_no_database_takes_are_stored(allow, registry, plain, tmp_path):
    answer = r'["3.11.2", {"a\ud800": "1", "b\u0000": "2", "Torch": "3"}]'
    registry.images["lab/train:1"] = with_program(plain, tmp_path, f"cat <<'E'\n{answer}\nE")

    row = prepared(registry.name("lab/train:1"))

    assert row.state == EnvironmentState.READY, row.why
    assert [each["name"] for each in row.packages] == ["a?", "b\ufffd", "python", "torch"]
    assert images.read(row.key).has_torch


@pytest.mark.parametrize(
    "answer",
    [
        *("5", "null", "[]", "{}", '["3.11.2"]', '["3.11.2", []]', '["3", {}]', "[3.11, {}]", "[" * 100_000),
        *('["3.11.2", {"a": 1}]', '["3.11.2", {"a": null}]', '["3.11.2\\n", {}]'),
        json.dumps(["3.11.2", {str(number): "1" for number in range(5_001)}]),
    ],
)
def test_answer_that_is_none_of_pythons_has_no_version(answer):
    assert asking.read_answer(answer.encode()) == ("", {})


@pytest.fixture
def ask(sandbox, tmp_path) -> Callable[[str], tuple[Any, str]]:
    """Ask a script of the shell as an image's Python; its answer and the log."""

    def send(script: str) -> tuple[Any, str]:
        root, log = make_root(tmp_path / "rootfs"), tmp_path / "log"
        (root / "usr/bin/python3").write_text(f"#!/bin/sh\n{script}\n")
        (root / "usr/bin/python3").chmod(0o755)
        answer = asking.ask_python(root, {}, tmp_path, log)
        return answer, log.read_text() if log.exists() else ""

    return send


def test_python_of_an_image_has_limits_while_it_is_asked(ask):
    answer, log = ask("for name in f v t c; do ulimit -$name 1>&2; done; exit 1")

    assert answer == ("", "", {})
    assert log.split()[-4:] == ["8192", str(2 * 1024**2), "60", "0"], log


def test_python_of_an_image_that_never_stops_talking_is_stopped(ask, tmp_path):
    answer, log = ask("while :; do echo 0123456789012345678901234567890123456789; done")

    assert answer == ("", "", {})
    assert "does not start" in log
    assert "did not end" not in log
    assert not (tmp_path / "said").exists()


def test_python_of_an_image_fills_no_more_memory_with_files_than_it_may(ask):
    answer, log = ask(
        "text=0123456789abcdef; for n in 1 2 3 4 5 6 7 8 9 a b c d e f g h; do text=$text$text; done; "
        "for n in 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p q r s t u v w x y z; "
        "do echo $text > /tmp/$n || exit 1; done"
    )

    assert answer == ("", "", {})
    assert "I/O error" in log, log  # a full disk, in the words of the shell


def test_python_of_an_image_that_does_not_end_is_ended_with_all_that_it_started(ask, monkeypatch):
    monkeypatch.setattr(asking, "_STARTS_WITHIN_S", 3.0)

    answer, log = ask("sleep 7351 & sleep 7352")

    assert (answer, "did not end within 3 s" in log) == (("", "", {}), True), log
    wait_until(lambda: not sleeping("7351", "7352"))


def sleeping(*words: str) -> list[str]:
    """Processes that sleep for one of these times."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [word for word in words if path.read_bytes() == f"sleep\0{word}\0".encode()]
    return found


@pytest.fixture
def placed(make_attempt, make_job, store_script, make_device) -> Callable[..., Any]:
    """An attempt of a job in an image that is there; keywords as fields of the job."""

    def make(row: Environment, text: bytes = SAY, devices: int = 1, **fields: Any) -> Any:
        spec = {"image": row.image, "gpus": devices, **fields}
        job = make_job(bundle=store_script(text), environment=row, spec=spec)
        return make_attempt(job, devices=[make_device(index) for index in range(devices)])

    return make


def exit_of(home: Home, attempt: Any) -> Any:
    path = home.job(attempt.job_id).attempt(attempt.number).exit
    wait_until(path.exists)
    return read_record(path)


@pytest.mark.django_db(transaction=True)
def test_script_runs_in_its_image(allow, registry, with_python, home, placed):
    registry.images["lab/train:1"] = with_python
    attempt = placed(prepared(registry.name("lab/train:1")))

    launcher.start(attempt)

    record = exit_of(home, attempt)
    log = home.job(attempt.job_id).attempt(1).log(0).read_text()
    assert (record["kind"], log) == ("ok", "in NAME=tiny tests 0\n")
    attempt.refresh_from_db()
    assert attempt.sandbox_level >= 1
    assert "landlock" not in attempt.sandbox_walls


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("kind", "devices", "fields", "sentence"),
    [
        ("plain", 1, {}, "has no Python that starts"),
        ("python", 2, {}, "has no torch, whose torchrun starts several ranks"),
        ("plain", 1, {"command": ["accelerate", "launch"]}, "has no program accelerate"),
    ],
)
def test_job_that_its_image_cannot_start_is_told_why(
    allow, registry, plain, with_python, placed, kind, devices, fields, sentence
):
    registry.images["lab/train:1"] = plain if kind == "plain" else with_python
    attempt = placed(prepared(registry.name("lab/train:1")), devices=devices, **fields)

    launcher.start(attempt)

    job = Job.objects.get(pk=attempt.job_id)
    assert (job.state, job.exit_kind) == (JobState.FAILED, ExitKind.INFRA)
    assert sentence in job.reason


def test_driver_of_the_host_comes_in_by_name(tmp_path):
    libraries, programs = tmp_path / "lib", tmp_path / "bin"
    libraries.mkdir()
    programs.mkdir()
    (libraries / "libcuda.so.570.1").write_text("")
    (libraries / "libcuda.so.1").symlink_to("libcuda.so.570.1")
    for name in ("libcudart.so.12", "libnvidia-ml.so.1", "libc.so.6"):
        (libraries / name).write_text("")
    (programs / "nvidia-smi").write_text("")

    found = driver.files([str(libraries)], [str(programs)])

    place = "/run/berth/driver"
    assert sorted(found) == [
        f"{place}/{name}" for name in ("libcuda.so.1", "libcuda.so.570.1", "libnvidia-ml.so.1", "nvidia-smi")
    ]
    assert driver.files([str(tmp_path)], [str(programs)]) == {}


def ready(tmp_path: Path, **env: str) -> images.ReadyImage:
    return images.ReadyImage(
        "lab/train", "sha256:0", tmp_path, env, "/usr/bin/python3", "3.11.2", has_torch=True
    )


def test_variables_of_an_image_come_in_but_not_those_that_berth_sets(tmp_path):
    image = ready(tmp_path, HF_HOME="/models", RANK="7", BERTH_HOME="/x", LD_PRELOAD="/evil.so", HOME="/root")
    run: Started = {"starts_as": "script", "script": "train.py", "args": []}

    found = images.inside(image, run, ranks=1, level=1, has_gpu=False)

    assert found.env == {"USER": "berth", "LOGNAME": "berth", "HF_HOME": "/models", "PATH": images.USUAL_PATH}
    assert found.record["loader"] == {"LD_PRELOAD": "/evil.so"}


def test_image_without_a_sandbox_is_refused_with_a_sentence(tmp_path):
    run: Started = {"starts_as": "script", "script": "train.py", "args": []}

    with pytest.raises(CannotLaunch, match="Jobs in images need bubblewrap"):
        images.inside(ready(tmp_path), run, ranks=1, level=0, has_gpu=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python", ("docker.io", "library/python", "latest", "")),
        ("pytorch/pytorch:2.9.0", ("docker.io", "pytorch/pytorch", "2.9.0", "")),
        ("docker.io/lab/train", ("docker.io", "lab/train", "latest", "")),
        ("docker://ghcr.io/a/b/c:x", ("ghcr.io", "a/b/c", "x", "")),
        ("localhost:5000/a", ("localhost:5000", "a", "latest", "")),
        (f"a/b@sha256:{'0' * 64}", ("docker.io", "a/b", "", f"sha256:{'0' * 64}")),
        (f"a/b:1@sha256:{'0' * 64}", ("docker.io", "a/b", "1", f"sha256:{'0' * 64}")),
    ],
)
def test_names_of_images_are_read_as_docker_reads_them(text, expected):
    name = read_image(text)

    assert (name.registry, name.repository, name.tag, name.digest) == expected
