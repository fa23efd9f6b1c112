"""Code that a job names by a git repository, fetched by the real git while the job waits."""

import dataclasses
import os
import resource
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from orchestrator.exceptions import Impossible, Malformed
from orchestrator.jobs import lifecycle, preparations
from orchestrator.jobs.checkouts import checking_out, deploy_keys, failures, mirrors
from orchestrator.jobs.checkouts import git as git_program
from orchestrator.jobs.checkouts.git import LONGEST_OUTPUT
from orchestrator.jobs.submission import clones, intake
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import Checkout, CheckoutState, Environment, ExitKind, Job, JobState
from orchestrator.people import secrets
from orchestrator.scheduler import passes
from orchestrator.scheduler import waiting as waits
from tests.jobs.repositories import commit, git, make_repository, served
from tests.waiting import patience_s, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
TRAIN = "print('step 1 loss 0.5')\n"


@pytest.fixture
def repository(home, settings, make_device, tmp_path: Path) -> Path:
    """A repository in a folder that the operator allows, and a device that is free."""
    make_device()
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, git_roots=(tmp_path / "git",))
    folder = tmp_path / "git" / "tiny"
    make_repository(folder, {"train.py": TRAIN})
    return folder


@pytest.fixture
def submit(ada: User) -> Callable[..., Job]:
    def accept(url: str, *, ref: str | None = None, key: str | None = None, **fields: Any) -> Job:
        spec = parse_spec({"source": {"git": url, "ref": ref, "key": key}, **fields})
        return intake.accept(ada, spec).job

    return accept


def fetched(job: Job) -> Job:
    """The job after its code was fetched, or could not be."""
    assert job.checkout is not None
    checking_out.fetch(job.checkout.pk)
    job.refresh_from_db()
    return job


def address(folder: Path) -> str:
    return f"file://{folder}"


def files_of(home, job: Job) -> set[str]:
    folder = home.bundles / job.bundle
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_job_waits_for_its_code_and_starts_with_the_commit_of_the_branch(home, repository, submit):
    newest = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "--quiet", "-b", "other")
    commit(repository, {"train.py": "print('other')\n"})

    job = submit(address(repository), ref="main")
    passes.run_pass()
    job.refresh_from_db()
    assert (job.name, job.bundle, job.state) == ("tiny", "", JobState.QUEUED)
    sentence = waits.sentence(job, timezone.now(), "")
    assert sentence.startswith(f"Waits for the code, main of file://{repository}")

    fetched(job)
    assert job.spec_fields["git"] == {
        "commit": newest,
        "branch": "main",
        "dirty": False,
        "url": address(repository),
    }
    assert (home.bundles / job.bundle / "train.py").read_text() == TRAIN
    assert newest[:12] in [event.reason for event in job.events.order_by("number")][-1]
    passes.run_pass()
    job.refresh_from_db()
    assert job.state == JobState.STARTING


def test_tags_commits_and_the_default_branch_are_fetched_as_well(home, repository, submit):
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "-a", "v1", "-m", "one")
    second = commit(repository, {"more.py": "x = 1\n"})

    by = {ref: fetched(submit(address(repository), ref=ref)) for ref in ("v1", first, None)}

    assert {ref: job.spec_fields["git"]["commit"] for ref, job in by.items()} == {
        "v1": first,
        first: first,
        None: second,
    }
    assert [job.spec_fields["git"]["branch"] for job in by.values()] == [None, None, None]
    assert files_of(home, by[None]) == {"train.py", "more.py"}


def test_berth_toml_and_package_list_of_the_repository_count_and_the_submit_goes_before(repository, submit):
    commit(
        repository,
        {
            "berth.toml": 'module = "pkg.fit"\nargs = ["--lr", "1"]\npriority = 40\nname = "of-file"\n',
            "pkg/fit.py": TRAIN,
            "pkg/__init__.py": "",
            "requirements.txt": "tinylib==1.0\n",
        },
    )

    plain, named = submit(address(repository)), submit(address(repository), name="mine", args=["--lr", "2"])
    for job in (fetched(plain), fetched(named)):
        assert (job.spec.module, job.spec.entrypoint, job.priority) == ("pkg.fit", None, 40)
        assert job.environment == Environment.objects.get()
    assert (plain.name, plain.spec.args) == ("of-file", ["--lr", "1"])
    assert (named.name, named.spec.args) == ("mine", ["--lr", "2"])


@pytest.mark.parametrize(("given", "runs"), [({}, False), ({"gpus": 1, "time_limit_s": 600}, True)])
def test_agents_job_does_not_get_more_from_berth_toml_than_its_budget_was_checked_for(
    repository, submit, given, runs
):
    commit(repository, {"berth.toml": "gpus = 4\ntime_limit_s = 86400\n", "train.py": TRAIN})
    job = submit(address(repository), **given)
    Job.objects.filter(pk=job.pk).update(agent={"token": 1, "name": "claude", "width": 1})

    fetched(job)

    assert (job.state == JobState.QUEUED, job.gpus) == (runs, 1)
    assert runs or "give gpus and time_limit_s with the submit" in job.reason


def test_members_of_an_array_share_one_fetch_and_keep_their_names(repository, submit):
    first = submit(address(repository), array="0-2")
    fetched(first)

    jobs = list(Job.objects.order_by("array_index"))
    assert [job.name for job in jobs] == ["train[0]", "train[1]", "train[2]"]
    assert len({job.bundle for job in jobs}) == 1
    assert Checkout.objects.count() == 1


def test_code_that_has_not_what_the_job_starts_fails_it_and_a_clone_names_another_script(repository, submit):
    job = fetched(submit(address(repository), entrypoint="fit.py"))

    assert (job.state, job.exit_kind) == (JobState.FAILED, ExitKind.CODE)
    assert "no file 'fit.py'" in job.exit_detail
    clone = clones.retry(job.owner, job, resume=False, changes={"entrypoint": "train.py"})
    assert (clone.bundle, clone.spec_fields["git"]) == (job.bundle, job.spec_fields["git"])


def test_commit_is_found_by_its_first_digits_also_before_the_newest(home, repository, submit):
    first = git(repository, "rev-parse", "HEAD")
    commit(repository, {"more.py": "x = 1\n"})

    job = fetched(submit(address(repository), ref=first[:8]))

    assert job.spec_fields["git"]["commit"] == first
    assert files_of(home, job) == {"train.py"}


@pytest.mark.parametrize(
    ("ref", "cause", "words"),
    [
        ("0" * 8, "ref", "has no branch, tag or commit 00000000"),
        ("gone", "ref", "has no branch, tag or commit gone"),
        ("0" * 40, "commit", "does not have or does not give out the commit"),
    ],
)
def test_ref_that_is_gone_fails_the_job_at_once_and_says_so(repository, submit, ref, cause, words):
    job = fetched(submit(address(repository), ref=ref))

    assert (job.state, job.exit_kind, job.ending["facts"]["cause"]) == ("failed", "code", cause)
    assert words in job.exit_detail
    clone = clones.retry(job.owner, job, resume=False, changes={})
    assert clone.checkout is not None
    assert (clone.checkout.ref, clone.checkout.state, clone.bundle) == (ref, CheckoutState.WAITING, "")


def test_host_that_cannot_be_reached_is_tried_again_and_the_job_says_when(repository, submit):
    job = submit("https://127.0.0.1:9/lab/code.git")
    fetched(job)
    passes.run_pass()
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    sentence = waits.sentence(job, timezone.now(), "")
    assert "the host could not be reached; next try in" in sentence

    for _ in range(preparations.MOST_TRIES):
        fetched(job)
    assert (job.state, job.ending["facts"]["cause"]) == ("failed", "network")


def test_private_repository_over_https_is_fetched_with_the_persons_token_only(
    home, repository, submit, ada, bob, monkeypatch, tmp_path
):
    certificate = tmp_path / "certificate.pem"
    secrets.keep(ada, "TOKEN", "the token")
    secrets.keep(ada, "WRONG", "another")
    with served(repository.parent, certificate, "the token") as host:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        url = f"{host}/tiny/.git"

        asked, wrong, right = (fetched(submit(url, key=key)) for key in (None, "WRONG", "TOKEN"))

    assert asked.ending["facts"]["cause"] == "key_needed"
    assert "it is private, or does not exist. Check the address" in asked.exit_detail
    assert "--git-key NAME" in asked.exit_detail
    assert wrong.ending["facts"]["cause"] == "key_refused"
    assert "WRONG" in wrong.exit_detail
    assert files_of(home, right) == {"train.py"}, right.exit_detail
    left = [path for path in (home.mirrors / str(ada.pk)).rglob("*") if path.name in {"key", "asked"}]
    assert left == []
    assert b"the token" not in b"".join(
        path.read_bytes() for path in home.mirrors.rglob("*") if path.is_file()
    )
    with pytest.raises(Impossible, match="no secret 'TOKEN'"):
        intake.accept(bob, parse_spec({"source": {"git": url, "key": "TOKEN"}}))


def test_token_is_not_sent_to_the_host_that_a_redirect_leads_to(
    repository, submit, ada, monkeypatch, tmp_path
):
    """A password goes by host alone: also the port is another server."""
    certificate = tmp_path / "certificate.pem"
    secrets.keep(ada, "TOKEN", "the token")
    with served(repository.parent, certificate, "the token") as other:

        def lead_away(request: BaseHTTPRequestHandler) -> None:
            request.send_response(302)
            request.send_header("Location", f"{other}{request.path}")
            request.send_header("Content-Length", "0")
            request.end_headers()

        with served(repository.parent, certificate, "", lead_away) as host:
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            job = fetched(submit(f"{host}/tiny/.git", key="TOKEN"))

    assert (job.state, job.ending["facts"]["cause"]) == (JobState.FAILED, "redirected")
    assert "leads to another host" in job.exit_detail


def test_host_whose_certificate_is_not_trusted_is_told_apart(repository, submit, tmp_path):
    with served(repository.parent, tmp_path / "certificate.pem", "") as host:
        job = fetched(submit(f"{host}/tiny/.git"))

    assert job.ending["facts"]["cause"] == "certificate"
    assert "SSL_CERT_FILE" in job.exit_detail


def _fetch_in_thread(number: int) -> None:
    checking_out.fetch(number)
    connection.close()


def test_cancel_ends_a_fetch_from_a_host_that_does_not_answer(repository, submit, ada, monkeypatch, tmp_path):
    certificate = tmp_path / "certificate.pem"
    asked, ended = threading.Event(), threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> None:
        asked.set()
        request.connection.recv(1)  # until the client is gone
        ended.set()

    with served(repository.parent, certificate, "", hang) as host:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        job = submit(f"{host}/tiny/.git")
        thread = threading.Thread(target=_fetch_in_thread, args=(job.checkout.pk,))
        thread.start()
        assert asked.wait(patience_s())
        lifecycle.cancel(job, by=ada.username)
        thread.join(patience_s())

        assert not thread.is_alive()
        assert ended.wait(patience_s())
    job.checkout.refresh_from_db()
    job.refresh_from_db()
    assert (job.checkout.state, job.state) == (CheckoutState.FAILED, JobState.CANCELLED)


def test_fetches_from_a_host_that_does_not_answer_leave_turns_to_other_people(
    repository, submit, ada, bob, monkeypatch, tmp_path
):
    certificate = tmp_path / "certificate.pem"

    def hang(request: BaseHTTPRequestHandler) -> None:
        request.connection.recv(1)  # until the client is gone

    with served(repository.parent, certificate, "", hang) as host:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        jobs = [submit(f"{host}/{number}.git") for number in range(checking_out.AT_ONCE)]
        other = intake.accept(bob, parse_spec({"source": {"git": address(repository)}})).job
        try:
            for job in [*jobs, other]:
                assert job.checkout is not None
                checking_out.start(job.checkout.pk)
            wait_until(lambda: Checkout.objects.filter(bundle__gt="").exists())
            assert not Checkout.objects.filter(owner=ada, tries__gt=0).exists()  # none has given up yet
        finally:
            for job in jobs:
                lifecycle.cancel(job, by=ada.username)
            wait_until(lambda: not checking_out._fetches.is_busy)


def test_endless_list_of_files_ends_the_fetch_and_not_the_memory(repository, submit, monkeypatch):
    """Ten folders of ten folders and so on, of the same few objects: some kilobytes, a hundred MB of names."""
    blob = git(repository, "hash-object", "-w", "train.py")
    entry = f"100644 blob {blob}"
    for _ in range(5):
        lines = "".join(f"{entry}\t{'name' * 50}-{number}\n" for number in range(10))
        (repository / ".git/tree").write_text(lines)
        tree = git(repository, "-c", "alias.tree=!git mktree < .git/tree", "tree")
        entry = f"040000 tree {tree}"
    newest = git(repository, "commit-tree", tree, "-m", "large")
    git(repository, "update-ref", "refs/heads/main", newest)
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    job = fetched(submit(address(repository)))

    grown_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes
    assert (job.state, job.ending["facts"]["cause"]) == (JobState.FAILED, "size")
    assert "The list of its files has over 64 MiB" in job.exit_detail
    assert grown_bytes < 2 * LONGEST_OUTPUT


def test_older_commit_comes_from_a_host_that_gives_out_the_newest_only(home, repository, submit, monkeypatch):
    """A host behind a plain sshd: it drops the wish for version 2 of the protocol."""
    monkeypatch.setattr(git_program, "_OPTIONS", {**git_program._OPTIONS, "protocol.version": "0"})
    first = git(repository, "rev-parse", "HEAD")
    commit(repository, {"more.py": "x = 1\n"})

    whole, digits, gone = (
        fetched(submit(address(repository), ref=ref)) for ref in (first, first[:8], "0" * 40)
    )

    for job in (whole, digits):
        assert files_of(home, job) == {"train.py"}, job.exit_detail
    assert gone.ending["facts"]["cause"] == "commit"


@pytest.mark.parametrize("version", ["0", "2"])
def test_repository_with_sha256_names_is_fetched_and_its_commit_found_by_the_first_digits(
    home, repository, submit, monkeypatch, version
):
    """A host of ssh that drops the wish for version 2 of the protocol speaks version 0."""
    options = {**git_program._OPTIONS, "protocol.version": version}
    monkeypatch.setattr(git_program, "_OPTIONS", options)
    folder = repository.parent / "long"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main", "--object-format=sha256")
    first = commit(folder, {"train.py": TRAIN})
    newest = commit(folder, {"more.py": "x = 1\n"})

    jobs = [fetched(submit(address(folder), ref=ref)) for ref in (None, first[:9], newest)]

    assert [job.checkout and job.checkout.commit for job in jobs] == [newest, first, newest], jobs[
        0
    ].exit_detail
    assert files_of(home, jobs[1]) == {"train.py"}


def test_worktree_and_clone_with_shared_objects_below_the_operators_folder_are_fetched(
    home, repository, submit
):
    worktree, clone = repository.parent / "work", repository.parent / "shared"
    git(repository, "worktree", "add", "--quiet", "-b", "other", str(worktree))
    git(repository, "clone", "--quiet", "--shared", str(repository), str(clone))

    for folder in (worktree, clone):
        job = fetched(submit(address(folder)))
        assert files_of(home, job) == {"train.py"}, job.exit_detail


def test_branch_with_an_apostrophe_keeps_its_name(repository, submit):
    git(repository, "branch", "ada's/try#1")

    job = fetched(submit(address(repository), ref="ada's/try#1"))

    assert job.spec_fields["git"]["branch"] == "ada's/try#1"


def test_repository_without_commits_and_names_that_code_cannot_have_are_told(repository, submit):
    empty = repository.parent / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    commit(repository, {"Data.txt": "1", "data.txt": "2"})

    none, twice = (fetched(submit(address(folder))) for folder in (empty, repository))

    assert "has no default branch: it is empty" in none.exit_detail
    assert "differ only in case" in twice.exit_detail
    assert "too large" not in twice.exit_detail


def _private_key(folder: Path, passphrase: str, *style: str) -> str:
    file = folder / "made"
    subprocess.run(["ssh-keygen", "-q", "-a", "1", "-N", passphrase, "-f", file, *style], check=True)
    return file.read_text()


@pytest.mark.parametrize(
    "style", [("-t", "ed25519"), ("-t", "rsa", "-m", "PEM"), ("-t", "rsa", "-m", "PKCS8")]
)
def test_deploy_key_with_a_passphrase_is_told_before_the_host_is_asked(
    repository, submit, ada, tmp_path, style
):
    secrets.keep(ada, "LOCKED", _private_key(tmp_path, "some words", *style))

    job = fetched(submit("ssh://git@127.0.0.1:9/lab/code.git", key="LOCKED"))

    assert (job.state, job.ending["facts"]["cause"]) == (JobState.FAILED, "key_locked")
    assert "a key with a passphrase" in job.exit_detail


def test_deploy_key_with_the_line_ends_of_windows_is_one_that_ssh_reads(tmp_path):
    key = _private_key(tmp_path, "", "-t", "ed25519")
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text(deploy_keys.with_line_ends(key.replace("\n", "\r\n")), newline="")

    assert not deploy_keys.has_passphrase(key)
    subprocess.run(["ssh-keygen", "-y", "-f", file], check=True, stdin=subprocess.DEVNULL)


def test_nothing_that_a_repository_names_is_run_and_links_and_modules_are_told(
    repository, submit, tmp_path, home
):
    (repository / "link.py").symlink_to("/etc/passwd")
    ran = tmp_path / "ran"
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        path = repository / ".git/hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {ran}\n")
        path.chmod(0o755)
    git(repository, "config", "uploadpack.packObjectsHook", f"touch {ran};")
    git(repository, "config", "filter.run.smudge", f"touch {ran}")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    commit(repository, {".gitattributes": "*.py filter=run\n*.bin filter=lfs\n", "model.bin": pointer})
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head},inner")
    git(repository, "commit", "--quiet", "-m", "a module")
    ran.unlink(missing_ok=True)  # the repository's own git runs its hooks

    job = fetched(submit(address(repository)))

    assert files_of(home, job) == {"train.py", ".gitattributes", "model.bin"}
    assert not ran.exists()
    told = [event.reason for event in job.events.order_by("number")][-1]
    assert all(words in told for words in ("Links were left out: link.py", "inner", "model.bin", "Git LFS"))


def test_fetch_after_one_that_was_killed_begins_a_new_mirror(repository, submit, ada):
    fetched(submit(address(repository)))
    mirror = mirrors.mirror_of(ada.pk, address(repository))
    (mirror / "shallow.lock").touch()
    newest = commit(repository, {"train.py": "print('new')\n"})

    assert fetched(submit(address(repository))).spec_fields["git"]["commit"] == newest


def test_halves_of_packs_that_a_killed_fetch_left_are_removed_by_the_next_also_if_it_fails(
    repository, submit, ada
):
    fetched(submit(address(repository)))
    left = mirrors.mirror_of(ada.pk, address(repository)) / "objects/pack/tmp_pack_abc"
    left.write_text("half of a pack")

    fetched(submit(address(repository), ref="gone"))

    assert not left.exists()


def test_repository_that_is_too_large_leaves_nothing_on_the_disk(home, repository, submit, ada, monkeypatch):
    (repository / "large.bin").write_bytes(os.urandom(2**21))
    commit(repository, {})
    monkeypatch.setattr(git_program, "_LIMITED", 'ulimit -f 2048; exec "$@"')  # a MiB

    job = fetched(submit(address(repository)))

    assert job.ending["facts"]["cause"] == "size", job.exit_detail
    files = [path for path in (home.mirrors / str(ada.pk)).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"git": "ext::sh -c touch"}, "not an address"),
        ({"git": "http://host/x.git"}, "not an address"),
        ({"git": "git://host/x.git"}, "not an address"),
        ({"git": "--upload-pack=touch x"}, "not an address"),
        ({"git": "ssh://-oProxyCommand=touch/x"}, "not an address"),
        ({"git": "-oProxyCommand=x:y"}, "not an address"),
        ({"git": "/srv/git/x"}, "not an address"),
        ({"git": "https://me:secret@host/x.git"}, "has a password in it"),
        ({"git": "http://me:secret@host/x.git"}, "has a password in it"),
        ({"git": "https://ghp_0123456789@host/x.git"}, "has a token in it"),
        ({"git": "https://glpat-0123456789@host/x.git"}, "has a token in it"),
        ({"git": "https:/host/x.git"}, "not an address"),
        ({"git": "git@host:/-x"}, "not an address"),
        ({"git": "https://host/x", "ref": "--upload-pack=x"}, "not a branch"),
        ({"git": "https://host/x", "ref": "a..b"}, "not a branch"),
        ({"git": "https://host/x", "ref": "+main:main"}, "not a branch"),
        ({"git": "https://host/x", "text": "print(1)"}, "give one of"),
        ({"text": "print(1)", "ref": "main"}, "belong to git"),
    ],
)
def test_addresses_and_refs_that_git_would_take_for_something_else_are_refused(source, words):
    with pytest.raises(Malformed, match=words):
        parse_spec({"source": source})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("git+https://host/x.git", "https://host/x.git"),
        ("git@host.org:lab/x.git", "git@host.org:lab/x.git"),
        ("git@host:/srv/git/x.git", "git@host:/srv/git/x.git"),
        ("https://lab@bitbucket.org/lab/x.git", "https://lab@bitbucket.org/lab/x.git"),
        ("git+ssh://git@host:2222/lab/x.git", "ssh://git@host:2222/lab/x.git"),
        ("https://[::1]:8443/x", "https://[::1]:8443/x"),
    ],
)
def test_usual_addresses_are_taken(given, kept):
    source = parse_spec({"source": {"git": given, "ref": "feature/a-1"}}).source
    assert source is not None
    assert source.git == kept


def test_folder_that_the_operator_did_not_name_is_refused_also_behind_a_link(repository, submit, tmp_path):
    make_repository(tmp_path / "private", {"train.py": TRAIN})
    (repository.parent / "link").symlink_to(tmp_path / "private")

    for place in (tmp_path / "private", repository.parent / "link", repository.parent / "../private"):
        with pytest.raises(Impossible, match="BERTH_GIT_ROOTS"):
            submit(address(place))


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "git@host: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            "key_refused",
        ),
        ("Host key verification failed.\nfatal: Could not read from remote repository.", "host_key"),
        ('Load key "key": error in libcrypto\ngit@host: Permission denied (publickey).', "key_unreadable"),
        ("ssh: Could not resolve hostname nohost: Name or service not known", "network"),
        ("remote: Repository not found.\nfatal: repository 'https://host/x/' not found", "repository"),
        ("fatal: unable to access 'https://host/x/': The requested URL returned error: 503", "network"),
        ("error: unable to write file large.bin", "disk"),
        ("fatal: Out of memory, realloc failed", "size"),
        ("error: index-pack died of signal 25\nfatal: index-pack failed", "size"),
    ],
)
def test_words_of_git_and_ssh_have_their_cause(said, cause):
    assert failures.cause_of(said, has_key=True).cause == cause


def test_old_mirrors_and_keys_that_a_killed_fetch_left_are_removed(home, repository, submit, ada):
    fetched(submit(address(repository)))
    left = home.mirrors / str(ada.pk) / "work-dead"
    left.mkdir()
    (left / "key").write_text("secret")
    now_s = timezone.now().timestamp()

    mirrors.sweep(now_s + 2 * mirrors.LEFT_OVER_S)
    assert not left.exists()
    assert mirrors.mirror_of(ada.pk, address(repository)).is_dir()
    mirrors.sweep(now_s + 2 * mirrors.KEPT.total_seconds())
    assert not mirrors.mirror_of(ada.pk, address(repository)).exists()
