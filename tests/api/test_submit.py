"""POST /jobs: what is accepted, what is refused and how."""

import io
import json
import threading
import zipfile
from uuid import UUID

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection

from berth.shared.job_fields import DIFF_FILE
from orchestrator.jobs import datasets
from orchestrator.models import Dataset, DatasetRoot, IdempotencyKey, Job, JobEvent, ModelVersion, Outbox
from orchestrator.spec.data_names import fill_placeholders
from orchestrator.store.bundles.bundles import DEFAULT_LIMITS

from .conftest import SCRIPT, ApiClient


def form(client: ApiClient, **parts: object):
    return client.post("/api/v1/jobs", parts)


def test_a_job_is_accepted_with_its_event_and_errand(client_of, ada, submit):
    answer = submit(client_of(ada), gpus=2, tags=["paper-x"], env={"SEED": "1"})

    assert answer.status_code == 201
    job = answer.json()
    assert (job["state"], job["gpus"], job["tags"], job["env"]) == ("queued", 2, ["paper-x"], {"SEED": "1"})
    assert job["short_id"] == job["id"][-8:]
    assert job["explanation"]["reason"] == "scheduler"
    assert job["submitted_at"].endswith("Z")
    assert JobEvent.objects.get().to_state == "queued"
    assert Outbox.objects.get().errand == "schedule"


def test_every_field_of_a_job_comes_back_as_it_was_given(client_of, ada, submit):
    """The example of docs/reference/api.md, and the fields that its lists name besides."""
    given = {
        "name": "tiny-gpt",
        "kind": "script",
        "entrypoint": "train.py",
        "args": ["--lr", "3e-4"],
        "datasets": [],
        "pool": "default",
        "gpus": 2,
        "min_gpus": 1,
        "gpu_memory_gib": 4,
        "gpu_memory_limit_gib": 6,
        "cpus": 4,
        "memory_gib": 16,
        "priority": 50,
        "time_limit_s": 86400,
        "max_retries": 3,
        "env": {"SEED": "1"},
        "secrets": [],
        "tags": ["paper-x"],
        "depends_on": [],
        "resume_args": ["--resume", "{checkpoint}"],
        "total_steps": 100000,
        "grace_period_s": 30,
        "preemptible": True,
        "begin_anew": False,
        "checkpoint_glob": "out/*.pt",
        "hang_timeout_s": 600,
        "launcher": "direct",
        "python": None,
        "not_before": "2027-01-02T03:04:05Z",
    }
    client = client_of(ada)

    job = submit(client, **given).json()

    for shown in (job, client.send("GET", f"/jobs/{job['id']}").json()):
        assert {name: shown[name] for name in given} == given


def test_a_script_comes_as_a_part_beside_the_job(client_of, ada, make_device):
    make_device()

    answer = form(
        client_of(ada), job='{"name": "digits"}', script=SimpleUploadedFile("digits.py", SCRIPT.encode())
    )

    assert answer.status_code == 201, answer.content
    assert answer.json()["entrypoint"] == "digits.py"


def test_the_job_part_may_be_a_file_and_the_code_a_zip(client_of, ada, make_device):
    make_device()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("src/train.py", SCRIPT)

    answer = form(
        client_of(ada),
        job=SimpleUploadedFile("job.json", b'{"entrypoint": "src/train.py"}', "application/json"),
        bundle=SimpleUploadedFile("code.zip", packed.getvalue()),
    )

    assert answer.status_code == 201, answer.content


def test_the_hash_of_an_earlier_upload_is_code_enough(client_of, ada, submit):
    client = client_of(ada)
    first = submit(client).json()

    answer = client.send("POST", "/jobs", {"source": {"bundle": first["bundle"]}})

    assert answer.json()["bundle"] == first["bundle"]


def test_an_unknown_and_anothers_bundle_are_422_beside_source(client_of, ada, bob, submit):
    anothers = submit(client_of(bob)).json()["bundle"]
    for sha256 in ("0" * 64, anothers):
        answer = client_of(ada).send("POST", "/jobs", {"source": {"bundle": sha256}})
        assert answer.status_code == 422
        assert "upload the code again" in answer.json()["errors"]["source"][0]
    assert not Job.objects.filter(owner=ada).exists()


def test_a_replica_without_its_service_is_refused_as_a_job_sweep_and_clone(client_of, ada, submit, make_job):
    replica = {"kind": "service", "command": ["python", "serve.py"]}
    client = client_of(ada)
    kept = make_job(ada, spec=replica)
    sweep = {
        "job": replica,
        "set": ["lr=0.1,0.2"],
        "metric": "loss",
        "direction": "minimize",
        "budget": {"trials": 2},
    }

    for answer in (
        submit(client, entrypoint=None, **replica),
        client.send("POST", "/sweeps", sweep),
        client.send("POST", f"/jobs/{kept.pk}/retry", {}),
    ):
        assert answer.status_code == 400, answer.content
        assert "begun by its service" in answer.json()["detail"]
    assert Job.objects.get() == kept


@pytest.mark.parametrize("gpus", [-1, 1.5, 10**9, "2", True, None])
def test_b28_a_number_of_gpus_that_is_none_is_400(gpus, client_of, ada, submit):
    answer = submit(client_of(ada), gpus=gpus)

    assert answer.status_code == 400
    assert "gpus" in answer.json()["errors"]
    assert not Job.objects.exists()


def test_b29_more_gpus_than_the_pool_has_is_422_at_once(client_of, ada, submit):
    answer = submit(client_of(ada), gpus=3)

    assert answer.status_code == 422
    assert "2 devices" in answer.json()["detail"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1", "0", '"8"', "true"])
def test_b30_memory_that_is_no_amount_is_400(number, client_of, ada, make_device):
    make_device()
    body = f'{{"source": {{"text": "pass"}}, "memory_gib": {number}}}'

    assert client_of(ada).send("POST", "/jobs", body.encode()).status_code == 400


@pytest.mark.parametrize("limit_s", [-1, 0, 10**12, "60", True])
def test_b31_a_time_limit_out_of_range_is_400(limit_s, client_of, ada, submit):
    assert submit(client_of(ada), time_limit_s=limit_s).status_code == 400


def test_b32_a_priority_above_ones_role_is_403_and_out_of_range_400(client_of, ada, root, submit):
    assert submit(client_of(ada), priority=61).status_code == 403
    assert submit(client_of(root), priority=100).status_code == 201
    assert submit(client_of(root), priority=101).status_code == 400


@pytest.mark.parametrize(
    "env",
    [
        {"LD_PRELOAD": "/tmp/x.so"},  # noqa: S108  # a value, not a file
        {"PATH": "/x"},
        {"BERTH_JOB_ID": "1"},
        {"A=B": "1"},
        {"A\nB": "1"},
        {"": "1"},
        {"A": "x\0y"},
        {"A": 1},
        {"A": "x" * 1024**2},
        {f"A{n}": "1" for n in range(10_000)},
    ],
    ids=lambda env: str(next(iter(env)))[:12],
)
def test_b33_environments_that_steer_the_launch_or_flood_it_are_400(env, client_of, ada, submit):
    answer = submit(client_of(ada), env=env)

    assert answer.status_code == 400
    assert "env" in answer.json()["errors"]


def test_b34_arguments_are_data(client_of, ada, submit):
    arguments = ["--lr", "3e-4", "; rm -rf /", "$(id)", "`id`", "a\nb", "{checkpoint}"]

    assert submit(client_of(ada), args=arguments).json()["args"] == arguments


@pytest.mark.parametrize(
    "reference", ["..", "../x", "file:///etc", "/proc/self/environ", "ftp://x/y", "a@b@c", ""]
)
def test_b35_a_dataset_that_is_a_path_or_address_is_400(reference, client_of, ada, submit):
    assert submit(client_of(ada), datasets=[reference]).status_code == 400


def test_an_unknown_dataset_is_422_and_a_known_one_is_pinned(client_of, ada, submit, tmp_path):
    dataset_root = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    Dataset.objects.create(name="digits", version="2", root=dataset_root, path="x", owner=ada)

    assert submit(client_of(ada), datasets=["letters"]).status_code == 422
    assert submit(client_of(ada), datasets=["digits"]).json()["datasets"] == ["digits@2"]


def test_two_datasets_of_one_variable_are_422(client_of, ada, submit, tmp_path):
    where = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    for name, version in [("a-b", "1"), ("a-b", "2"), ("a.b", "1")]:
        Dataset.objects.create(name=name, version=version, root=where, path="x", owner=ada)
    client = client_of(ada)

    assert submit(client, datasets=["a-b@1", "a-b@1"]).json()["datasets"] == ["a-b@1"]
    answer = submit(client, datasets=["a-b@1", "a.b"])
    assert answer.status_code == 422
    assert "would both be BERTH_DATASET_A_B" in answer.json()["errors"]["datasets"][0]


def test_two_versions_of_one_dataset_are_called_by_name_and_version(client_of, ada, submit, tmp_path):
    where = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    chosen = [
        Dataset.objects.create(name=name, version=version, root=where, path="x", owner=ada)
        for name, version in [("a-b", "1"), ("a-b", "2"), ("c", "1")]
    ]

    answer = submit(client_of(ada), datasets=["a-b@1", "a-b@2", "c"])

    assert answer.json()["datasets"] == ["a-b@1", "a-b@2", "c@1"]
    assert datasets.names_in_a_job(chosen) == ["a-b@1", "a-b@2", "c"]
    words = fill_placeholders(["{dataset:a-b@2}", "{dataset:c}"], {"dataset:a-b@2": "/x", "dataset:c": "/y"})
    assert words == ["/x", "/y"]


@pytest.fixture
def versions(ada, tmp_path):
    """Two versions of a dataset; the second is a model as well."""
    where = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    made = [
        Dataset.objects.create(name="digits", version=version, root=where, path="x", owner=ada)
        for version in "12"
    ]
    ModelVersion.objects.create(dataset=made[1], attempt_number=1, checkpoint="generation 1")
    return made


@pytest.mark.parametrize(
    ("word", "pinned"),
    [
        ("{dataset:digits@1}", "digits@1"),
        ("--weights={model:digits@2}", "digits@2"),
        ("{model:digits}", "digits@2"),
        ("{dataset:digits}", "digits@2"),
    ],
)
@pytest.mark.parametrize("field", ["args", "resume_args"])
def test_what_an_argument_names_becomes_data_of_the_job(
    client_of, ada, submit, versions, field, word, pinned
):
    assert submit(client_of(ada), **{field: [word]}).json()["datasets"] == [pinned]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("{model:digits@3}", "There is no model 'digits@3'; there is digits@2."),
        ("{model:digits@1}", "There is no model 'digits@1'; there is digits@2."),
        ("{dataset:digits@3}", "There is no dataset 'digits@3'; there is digits@2, digits@1."),
        ("{model:letters@1}", "There is no model 'letters@1'; make one of a checkpoint first."),
    ],
)
def test_a_version_in_an_argument_that_is_not_there_is_422_with_those_that_are(
    client_of, ada, submit, versions, word, sentence
):
    answer = submit(client_of(ada), args=[word])

    assert (answer.status_code, answer.json()["errors"]) == (422, {"args": [sentence]})


def test_a_model_is_named_as_data_and_must_be_one(client_of, ada, submit, versions):
    assert submit(client_of(ada), datasets=["model:digits@2"]).json()["datasets"] == ["digits@2"]
    assert submit(client_of(ada), datasets=["model:digits@1"]).status_code == 422
    assert submit(client_of(ada), datasets=["digits@1"], args=["{model:digits@1}"]).status_code == 422


def test_a_name_that_may_mean_two_versions_of_a_job_is_422(client_of, ada, submit, versions):
    answer = submit(client_of(ada), datasets=["digits@1", "digits@2"], args=["{dataset:digits}"])

    assert "name the version: {dataset:digits@VERSION}" in answer.json()["errors"]["args"][0]


def test_b37_an_unknown_field_is_400_and_names_the_known_ones(client_of, ada, submit):
    answer = submit(client_of(ada), strategy="magic")

    assert answer.status_code == 400
    assert "entrypoint" in answer.json()["errors"]["strategy"][0]


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"gpus": 1, "gpus": 1}', b"[]", b"null", b"", b"\xff"])
def test_b38_bodies_that_are_no_object_are_400(body, client_of, ada):
    assert client_of(ada).send("POST", "/jobs", body).status_code == 400


def test_b38_a_number_of_many_megabytes_is_413(client_of, ada):
    answer = client_of(ada).send("POST", "/jobs", b'{"gpus": ' + b"1" * (17 * 1024**2) + b"}")

    assert answer.status_code == 413


@pytest.mark.parametrize("key", ["", " ", "x" * 10_240, "schlüssel", "a\tb"])
def test_b39_an_idempotency_key_that_is_none_is_400(key, client_of, ada, submit):
    answer = submit(client_of(ada), key=key)

    assert answer.status_code == 400
    assert not Job.objects.exists()


def test_the_same_key_and_body_get_the_same_answer_again(client_of, ada, submit):
    client = client_of(ada)

    first, second = submit(client, key="k1"), submit(client, key="k1")

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.content == second.content
    assert Job.objects.count() == 1


def test_b40_the_same_key_with_another_body_is_422(client_of, ada, submit):
    client = client_of(ada)
    submit(client, key="k1")

    answer = submit(client, key="k1", gpus=2)

    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json()["errors"]


def test_a_key_belongs_to_its_owner(client_of, ada, bob, submit):
    submit(client_of(ada), key="k1")

    assert submit(client_of(bob), key="k1", gpus=2).status_code == 201


@pytest.mark.parametrize("name", ["x" * 10**6, "   ", "", "a\nb", "a\u202eb", "\ud800"])
def test_b41_names_that_are_empty_endless_or_disguised_are_400(name, client_of, ada, submit):
    body = b'{"source": {"text": "pass"}, "name": ' + repr_json(name) + b"}"

    assert client_of(ada).send("POST", "/jobs", body).status_code == 400


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
@pytest.mark.parametrize(
    ("field", "wrap"),
    [
        ("args", lambda text: [text]),
        ("resume_args", lambda text: ["--x", text]),
        ("env", lambda text: {"A": text}),
        ("env", lambda text: {text: "1"}),
        ("checkpoint_glob", lambda text: text),
        ("secrets", lambda text: [text]),
        ("entrypoint", lambda text: text),
        ("tags", lambda text: [text]),
        ("pool", lambda text: text),
        ("datasets", lambda text: [text]),
        ("depends_on", lambda text: [{"job": text}]),
        ("python", lambda text: text),
        ("array", lambda text: text),
        ("not_before", lambda text: text),
        ("source", lambda text: {"text": text}),
    ],
)
def test_a_text_that_cannot_be_written_is_refused_beside_its_field(
    field, wrap, text, client_of, ada, make_device
):
    make_device()
    body = json.dumps({"source": {"text": "pass"}, field: wrap(text)}).encode()

    answer = client_of(ada).send("POST", "/jobs", body)

    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field]
    assert not Job.objects.exists()


def test_a_job_of_before_such_texts_were_refused_is_shown_with_a_mark(client_of, ada, make_job):
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL refuses such texts itself, so no job there has one")
    job = make_job()
    job.spec_fields["args"] = ["\ud800"]
    job.save()

    assert client_of(ada).send("GET", f"/jobs/{job.pk}").json()["args"] == ["?"]
    assert client_of(ada).send("GET", "/jobs").status_code == 200


def repr_json(text: str) -> bytes:
    return ('"' + "".join(f"\\u{ord(each):04x}" for each in text) + '"').encode()


def test_b41_markup_in_a_name_is_text(client_of, ada, submit):
    answer = submit(client_of(ada), name="<script>alert(1)</script>")

    assert answer.json()["name"] == "<script>alert(1)</script>"
    assert answer["Content-Type"].startswith("application/json")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=", b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"),
        (
            "multipart/form-data; boundary=b",
            b"".join(
                b'--b\r\nContent-Disposition: form-data; name="p%d"\r\n\r\nx\r\n' % n for n in range(10_000)
            )
            + b"--b--",
        ),
    ],
    ids=["no boundary", "empty boundary", "no name", "10,000 parts"],
)
def test_b24_broken_forms_are_400(content_type, body, client_of, ada):
    answer = client_of(ada).generic("POST", "/api/v1/jobs", body, content_type=content_type)

    assert answer.status_code == 400
    assert answer["Content-Type"] == "application/problem+json"


def test_forms_with_unknown_doubled_or_missing_parts_are_400(client_of, ada, make_device):
    make_device()
    script = SimpleUploadedFile("train.py", SCRIPT.encode())

    assert form(client_of(ada), job="{}", code=script).status_code == 400
    assert form(client_of(ada), script=script).status_code == 400
    assert form(client_of(ada), job=["{}", "{}"]).status_code == 400
    assert form(client_of(ada), job="{}", script="print(1)").status_code == 400
    assert form(client_of(ada), job="{}").status_code == 400


def test_b17_to_b20_scripts_that_cannot_be_read_are_refused(client_of, ada, make_device):
    make_device()
    for data, status in [
        (b"", 400),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 64, 400),
        ("print('ü')".encode("latin-1"), 400),
        ("print(1)".encode("utf-16"), 400),
        (b"#" * (DEFAULT_LIMITS.script_bytes + 1), 413),
        (b"\xef\xbb\xbfprint(1)\n", 201),
    ]:
        answer = form(client_of(ada), job="{}", script=SimpleUploadedFile("train.py", data))
        assert answer.status_code == status, (data[:20], answer.content)
        assert status == 201 or list(answer.json()["errors"]) == ["script"]


def packed(**files: bytes) -> SimpleUploadedFile:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{name}.py", content)
    return SimpleUploadedFile("code.zip", data.getvalue())


LATIN_1 = "# -*- coding: latin-1 -*-\nprint('ü')\n".encode("latin-1")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "'train.py' is empty"),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 64, "'train.py' is a program, not a script"),
        (b"print(1)\n\0", "'train.py' has a NUL byte at offset 9"),
        ("print('ü')".encode("latin-1"), "'train.py' is not UTF-8: byte 0xfc at offset 7"),
        ("# coding: ascii\nprint('ü')".encode("latin-1"), "'train.py' is not UTF-8"),
        ("# coding: nonsense\nprint('ü')".encode("latin-1"), "'train.py' is not UTF-8"),
        ("print(1)".encode("utf-16"), "'train.py' is UTF-16"),
        (LATIN_1 + b"\0", "'train.py' is not UTF-8"),
    ],
)
def test_an_entry_file_in_an_archive_is_checked_as_a_script_is(data, said, client_of, ada, make_device):
    make_device()

    answer = form(client_of(ada), job="{}", bundle=packed(train=data, other=b"\x7fELF"))

    assert answer.status_code == 400, answer.content
    assert said in answer.json()["errors"]["entrypoint"][0]
    assert not Job.objects.exists()


@pytest.mark.parametrize("data", [LATIN_1, b"\xef\xbb\xbfprint(1)\n", "print('ü')".encode()])
def test_an_entry_file_in_a_declared_encoding_runs(data, client_of, ada, make_device):
    make_device()

    answer = form(client_of(ada), job="{}", bundle=packed(train=data, data=b"\0\xff"))

    assert (answer.status_code, answer.json()["warnings"]) == (201, [])


def test_an_entry_file_that_is_no_python_is_warned_about(client_of, ada, make_device):
    make_device()

    answer = form(client_of(ada), job="{}", bundle=packed(train=b"for for"))

    assert "does not look like Python that runs: line 1" in answer.json()["warnings"][0]


@pytest.mark.parametrize("text", ["", "a\0b", "\x7fELF"])
def test_text_that_is_no_script_is_400_beside_source(text, client_of, ada, submit):
    answer = submit(client_of(ada), source={"text": text})

    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == ["source"]


def test_an_archive_that_is_none_is_400_beside_its_part(client_of, ada, make_device):
    make_device()

    answer = form(client_of(ada), job="{}", bundle=SimpleUploadedFile("code.zip", b"PK\x03\x04 no"))

    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == ["bundle"]


def test_a_refused_submit_leaves_no_key_behind(client_of, ada, submit):
    client = client_of(ada)
    submit(client, key="k1", gpus=3)

    assert not IdempotencyKey.objects.exists()
    assert submit(client, key="k1").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_f87_fifty_submits_at_once_with_one_key_make_one_job(client_of, ada, submit):
    client = client_of(ada)
    header = client.defaults["HTTP_AUTHORIZATION"].removeprefix("Token ")
    answers = []

    def send() -> None:
        try:
            answers.append(submit(ApiClient(header), key="k1"))
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {answer.status_code for answer in answers} <= {201, 409}, [answer.content for answer in answers]
    assert len({answer.content for answer in answers if answer.status_code == 201}) == 1
    assert Job.objects.count() == 1


def test_an_array_is_answered_with_its_first_job_and_the_ids_of_all(submit, client_of, ada):
    client = client_of(ada)

    answer = submit(client, key="k", array={"count": 3, "at_most": 2}, not_before="2026-01-01T00:00:00+01:00")
    again = submit(client, key="k", array={"count": 3, "at_most": 2}, not_before="2026-01-01T00:00:00+01:00")

    job = answer.json()
    assert (answer.status_code, again.json()) == (201, job)
    assert (job["array"]["index"], job["array"]["count"], job["array"]["at_most"]) == (0, 3, 2)
    assert job["not_before"] == "2025-12-31T23:00:00Z"
    listed = client.send("GET", f"/jobs?array={job['array']['id']}").json()["results"]
    assert [each["id"] for each in reversed(listed)] == job["array"]["jobs"]


def test_a_whole_array_is_cancelled_at_once(submit, client_of, ada, bob):
    client = client_of(ada)
    members = submit(client, array={"count": 3, "at_most": 1}).json()["array"]["jobs"]
    alone = submit(client).json()["id"]
    Job.objects.filter(pk=members[0]).update(state="succeeded")

    answers = [client.send("POST", f"/jobs/{members[1]}/cancel?array=true") for _ in range(2)]

    assert [(each.status_code, each.json()["state"]) for each in answers] == [(200, "cancelled")] * 2
    states = dict(Job.objects.values_list("pk", "state"))
    assert [states[UUID(each)] for each in members] == ["succeeded", "cancelled", "cancelled"]
    assert states[UUID(alone)] == "queued"
    assert client_of(bob).send("POST", f"/jobs/{members[0]}/cancel?array=true").status_code == 404
    refused = client.send("POST", f"/jobs/{alone}/cancel?array=true")
    assert (refused.status_code, list(refused.json()["errors"])) == (422, ["array"])


GIT = {"commit": "9fceb02d0ae598e95dc970b74767f19372d61af8", "branch": "main", "dirty": True, "url": None}


def test_commit_is_kept_and_the_difference_from_it_can_be_fetched(client_of, ada, bob, make_device):
    make_device()
    data = io.BytesIO(packed(train=b"print(1)").read())
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr(DIFF_FILE, "-print(0)\n+print(1)\n")
    bundle = SimpleUploadedFile("code.zip", data.getvalue())

    job = form(client_of(ada), job=json.dumps({"git": GIT}), bundle=bundle).json()

    assert job["git"] == GIT
    assert b"+print(1)" in client_of(ada).get(f"/api/v1/jobs/{job['id']}/diff").getvalue()
    assert client_of(bob).get(f"/api/v1/jobs/{job['id']}/diff").status_code == 404


def test_code_without_a_difference_has_none_to_fetch(client_of, ada, submit):
    job = submit(client_of(ada), git={"commit": GIT["commit"]}).json()

    assert job["git"] == {"commit": GIT["commit"], "branch": None, "dirty": False, "url": None}
    assert client_of(ada).get(f"/api/v1/jobs/{job['id']}/diff").status_code == 404
    assert submit(client_of(ada), git={"commit": "HEAD"}).status_code == 400


def test_code_from_git_is_accepted_before_it_is_fetched_and_shown_as_such(client_of, ada, submit):
    source = {"git": "https://host.invalid/lab/code.git", "ref": "main"}

    job = submit(client_of(ada), source=source).json()

    assert (job["bundle"], job["git"]) == ("", None)
    url = source["git"]
    assert job["checkout"] == {"url": url, "ref": "main", "state": "waiting", "commit": None, "notes": []}
    refused = submit(client_of(ada), source={"git": "ext::sh -c x"})
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["source"])
