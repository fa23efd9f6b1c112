"""The submit form: errors stand beside their field, nothing has to be filled in twice."""

import io
import re
import shlex
import zipfile
from collections import defaultdict
from html.parser import HTMLParser

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from berth.shared.command_lines import command_line
from berth.shared.job_fields import FIELDS
from orchestrator.jobs import datasets
from orchestrator.models import Dataset, DatasetRoot, Job
from tests.dashboard.markup import html_of
from tests.spec.every_field import DEFAULTS, every_field

SCRIPT = b"print('step 1 loss 0.5')\n"


@pytest.fixture
def form(reader, ada, make_device):
    """Post the form as ada; ``file`` is (name, bytes)."""
    for index in range(2):
        make_device(index)
    browser = reader(ada)

    def post(file: tuple[str, bytes] | None = ("train.py", SCRIPT), **fields: object):
        data: dict[str, object] = {"gpus": "1", "pool": "default", "key": "k1", **fields}
        if file is not None:
            data["file"] = SimpleUploadedFile(*file)
        return browser.post(reverse("submit"), data)

    return post


def error_at(html: str, name: str) -> str:
    """The words beside a field that is marked as wrong."""
    found = re.search(rf'<p class="error" id="{name}-error">([^<]*)</p>', html)
    assert found, f"no error beside {name}"
    assert re.search(rf'<(?:input|textarea|select)[^>]*(?:id|name)="{name}"[^>]*aria-invalid="true"', html)
    return found[1]


def kept_bundle(html: str) -> str:
    found = re.search(r'name="bundle" value="([0-9a-f]{64}:[^"]+)"', html)
    assert found
    return found[1]


def test_a_script_is_submitted_and_its_page_opens(form, ada):
    answer = form(
        name="my job", args="--lr 3e-4 'two words'", env="SEED=1\nNAME=a=b", tags="paper, x", time_limit_h="2"
    )

    job = Job.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == reverse("job", args=[job.pk])
    assert (job.owner, job.name, job.tags, job.time_limit_s) == (ada, "my job", ["paper", "x"], 7200)
    assert job.spec.args == ["--lr", "3e-4", "two words"]
    assert job.spec.env == {"SEED": "1", "NAME": "a=b"}
    assert job.spec.entrypoint == "train.py"


@pytest.mark.parametrize(
    ("language", "words"), [("en", "A job has a /tmp of its own"), ("de", "Ein Job hat ein eigenes /tmp")]
)
def test_the_page_of_a_new_job_shows_its_warnings_in_the_readers_language(
    reader, ada, make_device, language, words
):
    make_device()
    browser = reader(ada)
    browser.cookies["berth_language"] = language
    fields = {"gpus": "1", "pool": "default", "key": "k1", "args": "--out=/tmp/x"}

    answer = browser.post(
        reverse("submit"), {**fields, "file": SimpleUploadedFile("train.py", SCRIPT)}, follow=True
    )

    assert words in html_of(answer)


def test_an_archive_with_one_script_needs_no_entrypoint(form):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("main.py", SCRIPT)
        archive.writestr("lib/model.py", SCRIPT)

    assert form(("code.bin", packed.getvalue())).status_code == 302
    assert Job.objects.get().spec.entrypoint == "main.py"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("gpus", "99", "2 devices"),
        ("gpus", "two", "give 4, auto, 2..8 or"),
        ("name", "bad\u202ename", "U+202E"),
        ("args", "it's", "quotation mark"),
        ("env", "LD_PRELOAD=/tmp/x.so", "LD_PRELOAD"),
        ("env", "no equals", "NAME=value"),
        ("priority", "95", "0 to 60"),
        ("time_limit_h", "-1", "greater than 0"),
        ("gpu_memory_gib", "nan", "finite"),
        ("entrypoint", "../../etc/passwd", "inside the uploaded files"),
    ],
)
def test_an_error_stands_beside_its_field_and_the_form_keeps_everything(form, field, value, words):
    answer = form(**{"args": "--epochs 3", field: value})

    html = html_of(answer)
    assert answer.status_code in {400, 403, 422}
    assert words in error_at(html, field).replace("&#x27;", "'")
    assert not Job.objects.exists()
    assert kept_bundle(html)
    if field != "args":
        assert 'value="--epochs 3"' in html


def test_the_file_is_not_asked_for_twice(form):
    html = html_of(form(gpus="99", name="again"))

    answer = form(None, gpus="1", name="again", bundle=kept_bundle(html), bundle_name="train.py")

    assert answer.status_code == 302
    assert Job.objects.get().bundle == kept_bundle(html).partition(":")[0]


def test_several_errors_are_said_at_once(form):
    html = html_of(form(None, args="it's", gpus="-1"))

    assert "Choose a script" in error_at(html, "file")
    assert "quotation mark" in error_at(html, "args")
    assert "greater than or equal to 0" in error_at(html, "gpus")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (("train.py", b"print('caf\xe9')\n"), "UTF-8"),
        (("train.py", b"\x7fELF\x02\x01\x01\x00"), "program"),
        (("code.zip", b"PK\x03\x04 not really"), "archive"),
    ],
)
def test_b14_b19_b20_a_file_that_cannot_be_code_is_refused_beside_the_field(form, file, words):
    answer = form(file)

    assert answer.status_code == 400
    assert words in error_at(html_of(answer), "file")
    assert not Job.objects.exists()


def test_pressing_run_twice_submits_once(form):
    first, second = form(), form()

    assert first["Location"] == second["Location"]
    assert Job.objects.count() == 1


def test_b40_an_old_form_with_other_content_asks_again_and_does_not_lose_it(form):
    form(name="one")

    html = html_of(form(name="two"))

    assert "Press Run again" in html
    key = re.search(r'name="key" value="([0-9a-f]+)"', html)
    assert key
    assert form(None, name="two", key=key[1], bundle=kept_bundle(html)).status_code == 302
    assert Job.objects.count() == 2


def test_a_made_up_bundle_is_refused_beside_the_file(form):
    answer = form(None, bundle="f" * 64)

    assert "upload the code again" in error_at(html_of(answer), "file")


def test_t09_anothers_upload_cannot_be_run_by_its_hash(form, reader, bob):
    signed = kept_bundle(html_of(form(gpus="99")))

    for bundle in (signed, signed.partition(":")[0]):
        answer = reader(bob).post(reverse("submit"), {"gpus": "1", "pool": "default", "bundle": bundle})
        assert "upload the code again" in error_at(html_of(answer), "file")
    assert not Job.objects.exists()


def test_a_job_can_be_cloned_and_edited(form, reader, ada):
    form(name="first", args="--lr 1e-3", env="SEED=1", time_limit_h="1.5")
    job = Job.objects.get()

    html = html_of(reader(ada).get(reverse("submit"), {"from": str(job.pk)}))

    for shown in ('value="--lr 1e-3"', "SEED=1", 'value="1.5"', f'value="{job.bundle}:'):
        assert shown in html


def test_others_jobs_cannot_be_cloned(form, reader, bob):
    form(name="first", env="SECRET=hunter2")

    html = html_of(reader(bob).get(reverse("submit"), {"from": str(Job.objects.get().pk)}))

    assert "hunter2" not in html
    assert 'name="bundle"' not in html


def test_datasets_are_chosen_from_the_registered_ones(form, reader, ada, tmp_path):
    (tmp_path / "digits").mkdir()
    root = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    Dataset.objects.create(name="digits", version="1", root=root, path="digits", owner=ada)

    assert form(datasets=["digits@1"]).status_code == 302
    assert Job.objects.get().spec.datasets == ["digits@1"]
    assert "no dataset" in html_of(form(datasets=["nothing@9"], key="k2")).lower()


def test_b65_a_form_without_its_token_is_refused(ada, home):
    from django.test import Client

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(ada)

    assert browser.post(reverse("submit"), {"name": "x"}).status_code == 403


def test_start_time_dependencies_and_array_are_taken_from_the_form(form, reader, ada):
    form(name="first")
    first = Job.objects.get()

    answer = form(
        key="k2",
        name="later",
        not_before="2026-01-02 07:00",
        depends_on=f"any:{first.short_id}",
        array="0-1%1",
    )

    assert answer.status_code == 302
    job = Job.objects.filter(array_index=1).get()
    assert job.not_before is not None
    assert job.not_before.isoformat() == "2026-01-02T07:00:00+00:00"
    assert job.spec_fields["depends_on"] == [{"job": str(first.pk), "when": "any"}]
    cloned = html_of(reader(ada).get(reverse("submit"), {"from": str(job.pk)}))
    assert f'value="any:{first.pk}"' in cloned


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("not_before", "soon", "with its zone"),
        ("depends_on", "xyz", "no job"),
        ("array", "9-1", "no members"),
    ],
)
def test_when_and_how_often_is_checked_beside_the_field(form, field, value, words):
    assert words in error_at(html_of(form(**{field: value})), field)


class Controls(HTMLParser):
    """What a browser sends of the submit form as it stands: ``sent`` has values by name."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sent: dict[str, list[str]] = defaultdict(list)
        self.select, self.text_of = "", ""
        self.feed(html[html.index('id="submit-form"') :])

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "select":
            self.select = given.get(
                "name", ""
            )  # without a name it is not sent; none of its options is selected
        elif tag == "option" and "selected" in given:
            self.sent[self.select].append(given.get("value", ""))
            self.text_of = "" if "value" in given else self.select
        elif tag == "textarea":
            self.sent[given["name"]].append("")
            self.text_of = given["name"]
        elif (
            tag == "input"
            and given.get("type") != "file"
            and (given.get("type") != "checkbox" or "checked" in given)
        ):
            self.sent[given["name"]].append(re.sub("[\r\n]", "", given.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self.text_of:
            self.sent[self.text_of][-1] += re.sub("\r\n?|\n", "\r\n", data)

    def handle_endtag(self, tag: str) -> None:
        self.text_of = ""


def test_clone_carries_every_field_of_a_job(job_with_every_field, reader, ada):
    parent = job_with_every_field

    html = reader(ada).get(reverse("submit"), {"from": str(parent.pk)}).content.decode()
    answer = reader(ada).post(reverse("submit"), dict(Controls(html).sent))

    assert answer.status_code == 302, re.findall("error[^<]*<", answer.content.decode())
    clone = Job.objects.order_by("pk").last()
    assert clone is not None
    assert clone.pk != parent.pk
    assert clone.spec.model_dump() == parent.spec.model_dump()
    assert (clone.bundle, clone.array_index) == (parent.bundle, parent.array_index)
    assert clone.environment == parent.environment


def test_command_of_a_job_names_every_field_that_is_set():
    starts = {"module": "pkg.train", "command": ["bash", "-c", "echo {checkpoint}"], "program": "jupyter"}
    starts["image"] = "pytorch/pytorch"
    words = shlex.split(command_line(every_field(**starts), DEFAULTS, "code.zip"))

    options = {re.split("[ /]", field.option)[0] for field in FIELDS if field.option}
    # A switch that is on by default has another word for off.
    assert options - set(words) == {"--elastic", "--restart"}
    assert {"--no-elastic", "--no-restart"} <= set(words)
    assert words[words.index("--") + 1 :] == every_field()["args"]


def test_duration_is_a_number_of_the_unit_or_a_text_with_units(form):
    form(time_limit_h="1h30m", hang_timeout_min="10", grace_period_s="2m")

    spec = Job.objects.get().spec
    assert (spec.time_limit_s, spec.hang_timeout_s, spec.grace_period_s) == (5400, 600, 120)


def test_text_too_long_for_the_form_is_refused_beside_its_field(form):
    html = form(env="A=" + "x" * 100_001).content.decode()

    assert "more than 100,000 characters" in error_at(html, "env")


def test_addresses_below_the_datasets_are_data_of_the_job_and_stay_in_a_refused_form(
    home, reader, ada, make_device, tmp_path
):
    make_device()
    DatasetRoot.objects.create(name="data", path=str(tmp_path))
    datasets.register(ada, name="all", root="data", path=".")
    script = SimpleUploadedFile("train.py", b"print()\n")
    form = {"datasets": ["all@1"], "addresses": "hf://datasets/lab/digits\ns3://lab/shards ", "gpus": "9"}

    refused = reader(ada).post(reverse("submit"), {**form, "file": script})
    script.seek(0)
    accepted = reader(ada).post(reverse("submit"), {**form, "gpus": "1", "file": script})

    assert refused.status_code == 422
    assert "hf://datasets/lab/digits\ns3://lab/shards</textarea>" in refused.content.decode()
    assert accepted.status_code == 302, accepted.content
    assert Job.objects.get().spec.datasets == ["all@1", "hf://datasets/lab/digits", "s3://lab/shards"]
    assert Job.objects.get().fetches.count() == 2


def test_repository_is_fetched_instead_of_an_upload_and_a_clone_of_it_names_it_again(form, reader, ada):
    answer = form(None, git_url="https://host.invalid/lab/code.git", git_ref="main")

    job = Job.objects.get()
    assert answer.status_code == 302
    assert job.checkout is not None
    assert (job.bundle, job.checkout.url, job.checkout.ref) == (
        "",
        "https://host.invalid/lab/code.git",
        "main",
    )
    html = html_of(reader(ada).get(reverse("submit"), {"from": job.pk}))
    assert 'value="https://host.invalid/lab/code.git"' in html
    assert "is uploaded" not in html
    assert html_of(reader(ada).get(reverse("job", args=[job.pk]))).count("https://host.invalid/lab/code.git")


def test_packages_are_typed_one_a_line(form, reader, ada):
    html = html_of(reader(ada).get(reverse("submit")))

    assert re.search(r'<textarea id="with_packages"', html)
    form(with_packages="einops\r\ndatasets<4\r\n")
    assert Job.objects.get().spec.with_packages == ["einops", "datasets<4"]


def test_address_that_is_none_and_a_file_beside_an_address_are_told_at_the_field(form):
    assert "not an address" in error_at(html_of(form(None, git_url="host/x")), "git_url")
    assert "not both" in error_at(html_of(form(git_url="https://host.invalid/x")), "git_url")
    assert not Job.objects.exists()


def test_clone_keeps_the_commit_of_its_code_but_not_that_of_another_file(form, reader, ada):
    form()
    first = Job.objects.get()
    git = {"commit": "9" * 40, "branch": "main", "dirty": False, "url": None}
    Job.objects.filter(pk=first.pk).update(spec_fields={**first.spec_fields, "git": git})
    html = html_of(reader(ada).get(reverse("submit"), {"from": first.pk}))

    form(None, key="k2", bundle=kept_bundle(html), **{"from": str(first.pk)})
    assert Job.objects.order_by("-id")[0].spec_fields["git"] == git
    form(("train.py", b"print(2)\n"), key="k3", **{"from": str(first.pk)})
    assert Job.objects.order_by("-id")[0].spec_fields["git"] is None
