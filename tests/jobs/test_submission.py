"""What becomes of a submit, before any door: checks, snapshot, one transaction."""

import uuid
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from django.core.files.base import ContentFile

from orchestrator.exceptions import Forbidden, Impossible, Malformed
from orchestrator.jobs import datasets
from orchestrator.jobs.submission import clones, intake
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import DatasetRoot, Device, Errand, Health, IdempotencyKey, Job, JobState, Outbox
from orchestrator.spec.data_names import fill_placeholders
from tests.jobs.invariants import check_history
from tests.jobs.races import race
from tests.jobs.submits import submit


@pytest.fixture(autouse=True)
def _devices(home, make_device):
    for index in range(2):
        make_device(index)


@pytest.fixture
def numbers(home, ada):
    """The dataset numbers@1, and the folder of its root."""
    folder = home.root / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("1 2 3")
    DatasetRoot.objects.create(name="data", path=str(folder))
    datasets.register(ada, name="numbers", version="1", root="data", path="a.txt")
    return folder


def test_accepted_job_has_its_event_and_outbox_row(ada, home):
    accepted = submit(ada, name="first", gpus=2)

    job = Job.objects.get()
    assert accepted.created
    assert (job.name, job.gpus, job.state) == ("first", 2, JobState.QUEUED)
    assert list(Outbox.objects.open().values_list("errand", flat=True)) == [Errand.SCHEDULE]
    check_history(job, list(job.events.order_by("number")))
    assert (home.bundles / job.bundle / "train.py").read_text() == "print(1)\n"


def test_the_snapshot_of_the_code_is_not_touched_by_later_edits(ada, home, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("print('before')\n")
    spec = parse_spec({})
    with script.open("rb") as file:
        job = intake.accept(ada, spec, script=ContentFile(file.read(), name="mine.py")).job
    script.write_text("print('after')\n")

    assert (home.bundles / job.bundle / "mine.py").read_text() == "print('before')\n"
    assert (job.spec.entrypoint, job.name) == ("mine.py", "mine")


def test_job_without_a_gpu_gets_a_slot_in_the_pool_beside_the_gpus(ada, make_pool, make_device):
    make_device(0, id="cpu-0", pool=make_pool("cpu"), kind="cpu")

    accepted = submit(ada, gpus=0)
    clone = clones.retry(ada, accepted.job, resume=False, changes={"gpus": 1})
    back = clones.retry(ada, clone, resume=False, changes={"gpus": 0})

    assert [(job.pool_id, job.gpus, job.spec.gpus) for job in (accepted.job, clone, back)] == [
        ("cpu", 1, 0),
        ("default", 1, 1),
        ("cpu", 1, 0),
    ]
    assert accepted.job.log_count == 1
    with pytest.raises(Impossible, match=r"Pool a100 has no CPU slots .* these have: cpu\."):
        submit(ada, gpus=0, pool=make_pool("a100").pk)


def test_job_without_a_gpu_runs_on_the_slots_of_a_server_without_gpus(ada, make_device):
    with pytest.raises(Impossible, match=r"no CPU slots .* BERTH_CPU_SLOTS"):
        submit(ada, gpus=0)
    Device.objects.update(kind="cpu")

    assert submit(ada, gpus=0).job.pool_id == "default"


@pytest.mark.parametrize("gpus", [-1, 1.5, 10**9, "2", True, None])
def test_b28_impossible_counts_of_devices_are_malformed(gpus):
    with pytest.raises(Malformed) as error:
        parse_spec({"gpus": gpus})
    assert "gpus" in error.value.fields


def test_b29_more_devices_than_the_pool_has_are_refused_at_the_submit(ada):
    with pytest.raises(Impossible, match=r"Pool default has 2 devices; 3 were asked for\."):
        submit(ada, gpus=3)
    assert not Job.objects.exists()


def test_b29_more_memory_than_any_device_has_is_refused(ada):
    with pytest.raises(Impossible, match=r"has no device with 100 GiB; the largest has 80\.0 GiB"):
        submit(ada, gpu_memory_gib=100)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 0, "8", True])
@pytest.mark.parametrize("name", ["memory_gib", "gpu_memory_gib", "time_limit_s"])
def test_b30_b31_nan_and_negative_numbers_are_malformed(name, value):
    with pytest.raises(Malformed) as error:
        parse_spec({name: value})
    assert list(error.value.fields) == [name]


def test_b31_a_limit_of_a_trillion_seconds_is_malformed():
    with pytest.raises(Malformed):
        parse_spec({"time_limit_s": 1e12})


def test_b32_a_priority_beyond_the_role_is_forbidden(ada, root):
    with pytest.raises(Forbidden, match="You may use 0 to 60"):
        submit(ada, priority=61)
    assert submit(root, priority=100).job.priority == 100


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "PATH",
        "PYTHONPATH",
        "RANK",
        "BERTH_NONCE",
        "A=B",
        "A\nB",
        "1A",
        "",
        "CUDA_VISIBLE_DEVICES",
    ],
)
def test_b33_variables_that_control_the_launch_are_malformed(name):
    with pytest.raises(Malformed) as error:
        parse_spec({"env": {name: "1"}})
    assert "env" in error.value.fields


@pytest.mark.parametrize("env", [{f"A{n}": "1" for n in range(10_000)}, {"A": "x" * 2**20}, {"A": "a\0b"}])
def test_b33_floods_of_variables_are_malformed(env):
    with pytest.raises(Malformed):
        parse_spec({"env": env})


def test_b34_arguments_are_data_whatever_they_look_like(ada):
    arguments = ["--x", ";$(reboot)", "a\nb", "{checkpoint_dir}/{}{other}{", "{checkpoint}"]

    job = submit(ada, args=arguments).job

    assert job.spec.args == arguments
    assert fill_placeholders(arguments, {"checkpoint_dir": "/c"}) == [
        *arguments[:3],
        "/c/{}{other}{",
        "{checkpoint}",
    ]


@pytest.mark.parametrize(
    "reference", ["..", "file:///etc", "/proc/self/environ", "ftp://x", "a/../b", "a@", ""]
)
def test_b35_text_that_is_no_dataset_is_malformed(reference):
    with pytest.raises(Malformed) as error:
        parse_spec({"datasets": [reference]})
    assert "datasets" in error.value.fields


def test_datasets_are_pinned_to_the_version_of_the_submit(ada, numbers):
    job = submit(ada, datasets=["numbers"]).job
    datasets.register(ada, name="numbers", version="2", root="data", path="a.txt")

    assert Job.objects.get(pk=job.pk).spec.datasets == ["numbers@1"]


def test_b37_an_unknown_field_is_named_with_those_that_are_known():
    with pytest.raises(Malformed, match="gpu_count: unknown field; known are name, kind, entrypoint"):
        parse_spec({"gpu_count": 2})


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_body_that_is_no_object_is_malformed(data):
    with pytest.raises(Malformed, match="A job is a JSON object"):
        parse_spec(data)


@pytest.mark.parametrize("name", ["x" * 201, "   ", "a\x00b", "a\u202eb", 3, "a\nb"])
def test_b41_unshowable_names_are_malformed(name):
    with pytest.raises(Malformed) as error:
        parse_spec({"name": name})
    assert list(error.value.fields) == ["name"]


def test_b27_names_are_kept_in_one_form(ada):
    assert submit(ada, name="cafe\u0301 🚀 ").job.name == "café 🚀"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": "x" * 201}, "name: give at most 200 characters"),
        ({"name": "  "}, "name: must not be empty"),
        ({"pool": ""}, "pool: must not be empty"),
        ({"tags": ["y" * 65]}, "tags: 0: give at most 64 characters"),
        ({"tags": ["a"] * 21}, "tags: give at most 20 entries"),
        ({"env": {f"A{n}": "" for n in range(201)}}, "env: give at most 200 entries"),
        ({"args": ["x" * 9000]}, "args: 0: give at most 8,192 characters"),
        ({"source": {"bundle": "abc"}}, "source: bundle: give the SHA-256 of an earlier upload"),
    ],
)
def test_messages_about_lengths_name_characters_and_entries(fields, sentence):
    with pytest.raises(Malformed) as error:
        parse_spec(fields)
    assert str(error.value).startswith(f"The job cannot be read: {sentence}")


@pytest.mark.parametrize("fields", [{}, {"source": None}])
def test_code_must_be_given_exactly_once(ada, fields):
    with pytest.raises(Malformed, match="Give the code once"):
        intake.accept(ada, parse_spec(fields))
    with pytest.raises(Malformed, match="Give the code once"):
        intake.accept(
            ada, parse_spec({"source": {"text": "1"}}), script=ContentFile(b"print(1)", name="a.py")
        )


def test_a_known_bundle_is_used_again_and_must_hold_the_entrypoint(ada):
    first = submit(ada).job
    again = intake.accept(ada, parse_spec({"source": {"bundle": first.bundle}})).job
    assert again.bundle == first.bundle
    with pytest.raises(Malformed, match=r"The upload has no file 'other\.py'"):
        intake.accept(ada, parse_spec({"source": {"bundle": first.bundle}, "entrypoint": "other.py"}))


@pytest.mark.parametrize("bundle", ["unknown", "anothers"])
def test_bundle_of_another_person_is_as_unknown_as_a_missing_one(ada, bob, bundle):
    sha256 = "f" * 64 if bundle == "unknown" else submit(bob).job.bundle
    with pytest.raises(Impossible, match="You have no bundle") as error:
        intake.accept(ada, parse_spec({"source": {"bundle": sha256}}))
    assert list(error.value.fields) == ["source"]
    assert not Job.objects.filter(owner=ada).exists()


def test_an_operator_may_run_the_bundle_of_any_job(root, bob):
    sha256 = submit(bob).job.bundle

    assert intake.accept(root, parse_spec({"source": {"bundle": sha256}})).job.bundle == sha256


def test_what_the_pool_lacks_is_refused_with_what_it_has(ada):
    refused: list[tuple[dict[str, Any], str]] = [
        ({"pool": "other"}, "There is no pool 'other'; known: default"),
        ({"python": "3.9"}, "no interpreter '3.9'; registered: none"),
        ({"secrets": ["TOKEN"]}, "You have no secret 'TOKEN'"),
        ({"depends_on": ["x"]}, "There is no job 'x' to depend on"),
        ({"depends_on": [str(uuid.uuid4())]}, "There is no job"),
    ]
    for fields, sentence in refused:
        with pytest.raises(Impossible, match=sentence):
            submit(ada, **fields)
    assert not Job.objects.exists()


def test_nobody_may_depend_on_a_job_that_is_not_theirs(ada, bob):
    job = submit(ada).job

    with pytest.raises(Impossible, match="There is no job"):
        submit(bob, depends_on=[str(job.pk)])


def test_a_dependency_is_found_in_any_spelling_of_its_id(ada):
    first = submit(ada).job

    job = submit(ada, depends_on=[first.pk.hex.upper()]).job

    assert job.spec_fields["depends_on"] == [str(first.pk)]


# --- the same request again


def test_i13_the_same_key_gives_the_same_job(ada):
    first = submit(ada, key="k")
    again = submit(ada, key="k")

    assert (first.created, again.created, again.job.pk) == (True, False, first.job.pk)
    assert again.answer == {"id": str(first.job.pk)}
    assert Job.objects.count() == 1


def test_keys_are_a_persons_own(ada, bob):
    assert submit(ada, key="k").job.pk != submit(bob, key="k").job.pk


def test_b40_the_same_key_with_another_body_is_refused(ada):
    submit(ada, key="k")
    others: list[dict[str, Any]] = [{"name": "other"}, {"text": "print(2)\n"}]
    for other in others:
        with pytest.raises(Impossible, match="was used for another body"):
            submit(ada, key="k", **other)
    assert Job.objects.count() == 1


def test_a_repeat_gets_its_answer_though_a_new_version_of_its_dataset_came(ada, numbers):
    first = submit(ada, key="k", datasets=["numbers"])
    datasets.register(ada, name="numbers", version="2", root="data", path="a.txt")

    assert submit(ada, key="k", datasets=["numbers"]).job.pk == first.job.pk


def test_a_repeat_gets_its_answer_though_the_pool_shrank(ada, make_pool):
    first = submit(ada, key="k", gpus=2)
    make_pool().devices.update(health=Health.MISSING)

    assert submit(ada, key="k", gpus=2).job.pk == first.job.pk


def test_a_key_is_forgotten_after_a_day(ada):
    first = submit(ada, key="k")
    kept = IdempotencyKey.objects.get()
    kept.created_at -= timedelta(hours=25)
    kept.save()

    assert submit(ada, key="k", name="other").job.pk != first.job.pk


@pytest.mark.django_db(transaction=True)
def test_f87_fifty_submits_with_one_key_make_one_job(ada):
    answers: list[intake.Accepted] = []

    raised = race(*[lambda _: answers.append(submit(ada, key="k"))] * 10, count=5)

    assert raised == []
    assert len(answers) == 50
    assert len({accepted.job.pk for accepted in answers}) == Job.objects.count() == 1
    assert sum(accepted.created for accepted in answers) == 1


def test_a_script_above_the_limit_is_not_read_whole(ada):
    class Endless(BytesIO):
        name = "a.py"
        asked = 0

        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert size > 0, "the whole file was asked for"
            self.asked += size
            return b"#" * size

    script = Endless()
    with pytest.raises(Exception, match="a script may have"):
        intake.accept(ada, parse_spec({}), script=script)
    assert script.asked < 20 * 2**20
