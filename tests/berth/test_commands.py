"""The command as people type it, against a real server."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
import zipfile

import pytest

from berth.cli import following
from berth.client import Berth
from tests.berth.conftest import BERTH, environment_for
from tests.system.server import REPOSITORY, free_port
from training.media import PNG_MAGIC, Media

pytestmark = pytest.mark.slow  # the server's start, and each command is a process

SCRIPT = "print('step 1 loss 0.5')\n"
COMMANDS = [
    "run",
    "plan",
    "sweep",
    "sweeps",
    "best",
    "again",
    "ps",
    "top",
    "watch",
    "why",
    "logs",
    "cancel",
    "hold",
    "release",
    "profile",
    "move",
    "resume",
    "compare",
    "pull",
    "data",
    "gpu",
    "usage",
    "drain",
    "calendar",
    "note",
    "share",
    "project",
    "login",
]


def test_alone_it_prints_the_wall_and_the_queue(cli):
    shown = cli()

    assert shown.returncode == 0
    assert shown.stdout.startswith("2 of 4 GPUs free   1 running   ")
    assert re.search(r"simulated GPU 0 .* tiny-gpt \w{8} \(ada, rank 0\)", shown.stdout)
    assert "Waits for 3 devices; 2 are free." in shown.stdout


def test_usage_tells_who_had_the_devices_and_where_the_time_went(cli):
    shown = cli("usage").stdout

    assert re.search(r"^who +GPU-hours +lost +idle +wasted +jobs +mean wait *$", shown, re.MULTILINE)
    assert re.search(r"^ada +\d", shown, re.MULTILINE)
    assert "device hours: " in shown


def test_ps_lists_the_newest_jobs_of_the_caller(cli, web):
    shown = cli("ps").stdout

    assert [name for name in ("vit-s", "tiny-gpt", "ner", "eval") if name in shown] == [
        "vit-s",
        "tiny-gpt",
        "ner",
        "eval",
    ]
    assert "many" not in shown
    assert re.search(r"running +tiny-gpt +0,1 +72% step 720/1,000 +loss 2.31 ", shown)
    assert web.jobs["running"][-8:] in shown


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("ps",),
        ("top", "--once"),
        ("why",),
        ("plan", "-g", "2"),
        ("data",),
        ("data", "list"),
        ("gpu", "0"),
        ("logs", "--error"),
        ("compare", "-2"),
        ("sweeps",),
    ],
)
def test_every_look_can_be_json(cli, words):
    shown = cli(*words, "--json")

    assert shown.returncode == 0, shown.stderr
    json.loads(shown.stdout)


def test_json_and_filters_agree_with_rest(cli, web):
    jobs = json.loads(cli("ps", "--state", "failed,succeeded", "--json").stdout)

    assert {job["id"] for job in jobs} == {web.jobs["failed"], web.jobs["ended"]}


def test_an_operator_acts_on_own_jobs_without_a_name_not_on_others(cli):
    refused = cli("cancel", who="root")

    assert (refused.returncode, refused.stderr) == (2, "berth: You have no job to cancel.\n")


def test_why_explains_the_oldest_waiting_job(cli):
    shown = cli("why").stdout

    assert shown.startswith("vit-s ")
    assert "Waits for 3 devices; 2 are free." in shown
    assert "1 job ahead of it." in shown


def test_a_plan_says_where_a_job_would_run_and_submits_nothing(cli):
    before = [job["id"] for job in json.loads(cli("ps", "--json").stdout)]

    small, large = cli("plan", "-g", "1").stdout, cli("plan", "-g", "4", "--json").stdout
    refused = cli("plan", "-g", "5")

    assert small.startswith(("It would start at once in pool default.", "Waits for 1 simulated GPU;"))
    assert json.loads(large)["ahead"] >= 2
    assert (refused.returncode, "has 4 devices; 5 were asked for" in refused.stderr) == (2, True)
    assert [job["id"] for job in json.loads(cli("ps", "--json").stdout)] == before


def test_logs_are_byte_for_byte_in_a_pipe(cli):
    shown = cli("logs", "tiny-gpt").stdout

    assert shown.count("\n") == 40_000
    assert shown.endswith("line 40000\n")


def test_the_last_lines_of_a_log_are_found_from_its_end(cli):
    assert cli("logs", "tiny-gpt", "-n", "3").stdout == "line 39998\nline 39999\nline 40000\n"
    assert cli("logs", "tiny-gpt", "-n", "20000").stdout.count("\n") == 20_000


def test_error_of_a_job_whose_packages_failed_is_what_the_installer_said(web, capsys):
    with Berth(web.url, web.tokens["root"]) as berth:
        following.print_error(berth.job(web.jobs["unmet"]), as_json=False)

    shown = capsys.readouterr().out
    assert "A package of unmet.py was not found, or not in that version. no einopz." in shown
    assert "error: einopz was not found" in shown


def test_the_error_of_the_newest_failed_job_needs_no_name(cli):
    shown = cli("logs", "--error").stdout

    assert re.match(
        r"ner \w{8}, attempt 1, rank 0: KeyError: 'lr' on rank 0.\n\nTraceback\nKeyError: 'lr'\n", shown
    )


def test_a_job_is_named_by_its_id_a_part_of_it_or_its_name(cli, web):
    job_id = web.jobs["ended"]

    for name in (job_id, job_id[-8:], job_id[-3:], "eval"):
        shown = cli("watch", name)
        assert (shown.returncode, shown.stderr) == (0, f"eval {job_id[-8:]} succeeded after 2 h.\n")


def test_a_name_of_several_jobs_means_the_newest_to_look_at_and_none_to_stop(cli):
    jobs = [json.loads(cli("run", "-", "--name", "twin", "--json", stdin=SCRIPT).stdout) for _ in range(2)]

    refused = cli("cancel", "twin")

    assert cli("why", "twin").stdout.startswith(f"twin {jobs[1]['short_id']} ")
    assert (refused.returncode, "Several jobs match 'twin'" in refused.stderr) == (2, True)
    assert cli("cancel", jobs[0]["short_id"][-6:]).returncode == 0
    assert cli("cancel", "twin").stdout == f"twin {jobs[1]['short_id']} cancelled.\n"


def test_run_submits_with_the_scripts_own_arguments(cli, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    words = "run train.py -g2 --env A=b -t 2h --hang-timeout 30m --tag x --json -- --lr 3e-4 -v"
    done = cli(*words.split())
    job = json.loads(done.stdout)

    assert (job["args"], job["gpus"], job["time_limit_s"]) == (["--lr", "3e-4", "-v"], 2, 7200)
    assert (job["env"], job["tags"], job["state"]) == ({"A": "b"}, ["x"], "queued")
    assert job["hang_timeout_s"] == 1800
    assert cli("cancel", job["id"]).stdout == f"train {job['short_id']} cancelled.\n"


def test_run_reads_a_script_from_standard_input(cli):
    job = json.loads(cli("run", "-", "--name", "piped", "--json", stdin=SCRIPT).stdout)

    assert job["name"] == "piped"
    cli("cancel", job["id"])


def test_again_replaces_an_argument_and_keeps_the_rest(cli, web):
    job = json.loads(cli("again", web.jobs["failed"], "--json", "--", "--lr", "5e-4").stdout)

    assert job["args"] == ["--lr", "5e-4", "--amp"]
    assert job["parent"] == web.jobs["failed"]
    cli("cancel", job["id"])


def test_hold_and_release(cli):
    assert re.fullmatch(r"vit-s \w{8} held.\n", cli("hold").stdout)
    assert re.fullmatch(r"vit-s \w{8} queued.\n", cli("release").stdout)


def test_a_job_in_the_wrong_state_is_named_with_it_not_denied(cli):
    refused = cli("hold", "eval")

    assert refused.returncode == 2
    assert refused.stderr == "berth: The job is succeeded; only a queued job can be held.\n"


def test_move_orders_ones_own_waiting_jobs(cli, web):
    job = json.loads(cli("again", web.jobs["failed"], "--json").stdout)["id"]
    try:
        shown = cli("move", job, "--before", "vit-s").stdout
        assert re.fullmatch(r"\S+ \w{8} comes before vit-s \w{8} now.\n", shown)
        refused = cli("move", job)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.endswith("Give either --before JOB or --behind JOB.\n")
    finally:
        cli("cancel", job)


def test_cancel_asks_which_and_does_nothing_without_an_answer(cli):
    """On a terminal; where nobody can be asked, it says what to do."""
    refused = cli("cancel")

    assert refused.returncode == 2
    assert "tiny-gpt" in refused.stderr
    assert refused.stderr.endswith("berth: You have 2 jobs to cancel; name one.\n")


def test_compare_shows_what_differs(cli, web):
    shown = cli("compare", "tiny-gpt", web.jobs["failed"]).stdout

    assert re.search(r"lr +3e-4 +1e-3", shown)
    assert re.search(r"amp +yes", shown)
    assert "entrypoint" not in shown
    assert "entrypoint" in cli("compare", "tiny-gpt", "eval", "--all").stdout


def test_pull_fetches_files_once_and_overwrites_nothing(cli, tmp_path, web):
    first = cli("pull", "eval")
    folder = tmp_path / f"eval-{web.jobs['ended'][-8:]}"
    (folder / "result.json").write_text("mine")
    refused = cli("pull", "eval")

    assert first.returncode == 0
    assert (folder / "plots" / "a b.txt").read_text() == "a plot\n"
    assert (folder / "scores.csv").read_text() == "epoch,loss\n"
    assert (folder / "work" / "result.json").read_text() == "beside\n"
    assert refused.returncode == 2
    assert "is here already and differs; use --force" in refused.stderr
    assert (folder / "result.json").read_text() == "mine"
    assert cli("pull", "eval", "*.json", "--force").returncode == 0
    assert "accuracy" in (folder / "result.json").read_text()


def test_media_of_a_job_are_listed_and_fetched_as_files(cli, tmp_path, web):
    media = Media(web.home / "jobs" / web.jobs["ended"] / "attempts" / "1" / "media")
    media.take("image", {"val/a b": [[0, 255]]}, 1_200, 1000.0)
    media.take("text", "yes", 1_200, 1000.0)
    media.write()

    listed = cli("media", "eval")
    fetched = cli("media", "eval", "--to", "pictures")
    nothing = cli("media", "eval", "--kind", "table", "--to", "pictures")

    assert re.search(r"1,200 +image +val/a b +1 +0", listed.stdout)
    assert (tmp_path / "pictures" / "val-a-b-attempt1-step1200-0.png").read_bytes().startswith(PNG_MAGIC)
    assert json.loads((tmp_path / "pictures" / "text-attempt1-step1200-1.json").read_text())["text"] == "yes"
    assert fetched.returncode == 0
    assert nothing.returncode == 2
    assert "has reported no picture, histogram, table or text" in nothing.stderr


def test_a_checkpoint_becomes_a_model_that_is_shown_fetched_and_removed(cli, tmp_path):
    none = cli("model")
    made = cli("model", "add", "letters", "eval", "--description", "for the paper")
    listed = cli("model")
    shown = cli("model", "show", "letters@1")
    fetched = cli("pull", "model:letters@1")
    unknown = cli("pull", "model:letters", "*.bin")

    assert "berth model add NAME JOB" in none.stderr
    assert "ada/letters@1 is eval at step 300" in made.stdout
    assert "--data ada/letters@1" in made.stdout
    assert re.search(r"ada/letters@1 +eval +300", listed.stdout)
    assert "for the paper" in shown.stdout
    assert "state.pt" in shown.stdout
    with zipfile.ZipFile(tmp_path / "letters-1" / "state.pt") as file:
        assert file.read("step") == b"300"
    assert fetched.stdout.split() == ["letters-1/state.pt"]
    assert "has no file *.bin; it has state.pt" in unknown.stderr
    assert cli("model", "rm", "letters").returncode == 0
    assert "There is no model 'letters'" in cli("model", "show", "letters").stderr


def test_data_is_pushed_named_by_its_path_and_removed(cli, tmp_path):
    (tmp_path / "letters" / "more").mkdir(parents=True)
    (tmp_path / "letters" / "a.txt").write_text("abc")
    (tmp_path / "letters" / "more" / "large.bin").write_bytes(os.urandom(9 * 1024**2))  # two parts
    (tmp_path / "train.py").write_text(SCRIPT)

    pushed = cli("data", "push", "letters", "letters")
    assert pushed.stdout.startswith(
        "ada/letters@1 is here (9 MiB). Use it with: berth run --data ada/letters@1"
    )
    (tmp_path / "letters" / "a.txt").write_text("changed")
    submitted = cli("run", "--data", "./letters", "--data", "moby=letters/a.txt", "train.py", "--json")
    job = json.loads(submitted.stdout)
    assert job["datasets"] == ["ada/letters@2", "ada/moby@1"], submitted.stderr
    assert "letters is your dataset ada/letters@2." in submitted.stderr
    missing = cli("run", "--data", "./nothing", "train.py")
    assert missing.stderr == "berth: There is nothing at nothing on this machine; check the path.\n"

    assert re.search(r"ada/letters@1 +9 MiB +ada +pushed", cli("data", "ls").stdout)
    refused = cli("data", "rm", "letters")
    assert "uses ada/letters@2; cancel it, or wait for its end." in refused.stderr
    assert cli("data", "rm", "letters@1").stderr == "Removed letters@1.\n"


def test_datasets_are_added_and_listed(cli):
    added = cli("data", "add", "moby", "moby_dick.txt", "--root", "examples")

    assert added.stdout.startswith("moby@1 is registered (")
    absolute = cli("data", "add", "moby-2", str(REPOSITORY / "examples/data/moby_dick.txt"), "--json")
    assert (json.loads(absolute.stdout)["root"], json.loads(absolute.stdout)["owner"]) == ("examples", "ada")
    assert re.search(r"moby@1 .* ada .* examples:moby_dick.txt", cli("data").stdout)
    refused = cli("data", "add", "moby", "nothing", "--root", "nowhere")
    assert refused.stderr.startswith("berth: There is no dataset root 'nowhere'; known: examples.")


def test_a_device_is_drained_and_given_back_by_operators_only(cli):
    drained = cli("drain", "0", who="root")

    assert re.fullmatch(
        r"simulated GPU 0 drains: tiny-gpt \w{8} \(ada\) goes on; nothing new starts there. Undo: berth drain 0 --undo\n",
        drained.stdout,
    )
    assert "draining" in cli("gpu", "0").stdout
    assert "jobs may start on it" in cli("drain", "0", "--undo", who="root").stdout
    refused = cli("drain", "0")
    assert (refused.returncode, "operators" in refused.stderr) == (2, True)
    assert "There is no device '9'; there are 0, 1, 2, 3." in cli("gpu", "9").stderr


def test_a_login_is_checked_kept_and_forgotten(cli, web, plain):
    nobody = {"BERTH_TOKEN": "", "BERTH_URL": ""}

    wrong = cli("login", web.url, stdin="berth_wrong\n", env=nobody)
    done = cli("login", web.url, "--token", "-", stdin=f"{web.tokens['ada']}\n", env=nobody)

    assert (wrong.returncode, done.returncode) == (2, 0)
    assert f"Logged in at {web.url} as ada; the token has the scope write." in done.stdout
    assert web.tokens["ada"] not in done.stdout + done.stderr
    assert "tiny-gpt" in cli("ps", env=nobody).stdout
    cli("logout", env=nobody)
    assert not (plain / "berth" / "login.json").exists()


def test_without_a_token_it_says_how_to_get_one(cli, web):
    refused = cli("ps", env={"BERTH_TOKEN": ""})
    old = cli("ps", env={"BERTH_TOKEN": "berth_0000000000_" + 43 * "x"})

    advice = f"Make {{}} at {web.url}/account, then run: berth login\n"
    assert refused.stderr == f"berth: You are not logged in at {web.url}. {advice.format('a token')}"
    assert old.stderr.endswith(f"unknown, expired or revoked. {advice.format('another')}")
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.parametrize("words", [(), ("ps",), ("run", "-"), ("logs", "-f"), ("watch",)])
def test_f01_a_server_that_is_not_there_is_one_sentence(cli, words):
    refused = cli(*words, env={"BERTH_URL": f"http://127.0.0.1:{free_port()}"}, stdin=SCRIPT)

    assert refused.returncode == 2
    assert re.match(r"berth: Nothing answers at http://127.0.0.1:\d+ ", refused.stderr)
    assert "Traceback" not in refused.stderr


def test_a_refusal_can_be_json_too(cli):
    refused = cli("run", "-", "-g", "9", "--json", stdin=SCRIPT)

    problem = json.loads(refused.stderr)
    assert (problem["status"], problem["code"], list(problem["fields"])) == (422, "impossible", ["gpus"])
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "nothing.py"), "There is no file 'nothing.py' here"),
        (("run", "-e", "CODE=3", "train.py"), "for a variable: --env CODE=3"),
        (("run", "-", "-t", "soon"), "'soon' is not a duration"),
        (("run", "-", "--env", "A"), "'A' is not of the form NAME=VALUE"),
        (("compare", "tiny-gpt"), "Name two or more jobs to compare"),
        (("compare", "-x"), "There is no option -x"),
        (("ps", "--", "x"), "take arguments after --"),
        (("ps", "--state", "gone"), "There is no state 'gone'"),
        (("logs", "nothing-of-this-name"), "`berth ps` lists yours"),
        (("logs", "--error", "eval"), "has no failed attempt; its state is succeeded"),
        (("pull", "ner"), "has written no files"),
        (("pull", "ner", "-c", "latest"), "has no checkpoints"),
    ],
)
def test_wrong_use_is_answered_with_a_sentence(cli, words, sentence):
    refused = cli(*words, stdin=SCRIPT)

    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr


def test_t29_name_cannot_control_the_terminal(cli, web):
    shown = cli("ps", "-q", "evil", who="bob").stdout

    assert "evil" in shown
    assert "\x1b" not in shown
    assert "owned" not in shown


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals_and_not_with_no_color(web, plain, tmp_path, variables, coloured):
    status, shown = on_a_terminal(["ps"], environment_for(web.url, web.tokens["ada"]) | variables)

    assert status == 0
    assert "tiny-gpt" in shown
    assert ("\x1b[32m" in shown) is coloured


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_terminal_shows_whole_ids_states_and_holders(web, plain, tmp_path, columns):
    _, shown = on_a_terminal([], environment_for(web.url, web.tokens["ada"]), columns=columns)

    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert re.search(rf"^{web.jobs['running'][-8:]} +▶ running +tiny-gpt", plain_text, re.MULTILINE)
    assert re.search(r"tiny-gpt \w{8} \(ada, rank 0\)", plain_text)
    assert [line for line in plain_text.splitlines() if len(line) > columns] == []


def test_the_shell_completes_jobs_by_their_short_id(cli, web):
    short = web.jobs["ended"][-8:]

    shown = cli(
        env={"_BERTH_COMPLETE": "complete_bash", "COMP_WORDS": f"berth logs {short[:3]}", "COMP_CWORD": "2"}
    )

    assert short in shown.stdout


def test_help_names_every_command_and_loads_no_network_code(web, plain, tmp_path):
    code = "import sys, atexit; atexit.register(lambda: print(sorted(sys.modules))); from berth.cli import main; sys.argv = ['berth', '--help']; main()"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment_for(web.url, ""),
    ).stdout

    assert [name for name in COMMANDS if f" {name} " not in shown] == []
    heavy = {
        "httpx",
        "django",
        "torch",
        "pydantic",
        "numpy",
        "berth.client",
        "markdown_it",
        "pygments",
    }
    assert not [name for name in heavy if f"'{name}'" in shown]


def test_ps_loads_neither_django_nor_what_checks_models(web, plain, tmp_path):
    code = "import sys, atexit; atexit.register(lambda: print(sorted(sys.modules))); from berth.cli import main; sys.argv = ['berth', 'ps']; main()"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment_for(web.url, web.tokens["ada"]),
    ).stdout

    assert "'httpx'" in shown
    heavy = {
        "django",
        "torch",
        "pydantic",
        "numpy",
        "psutil",
        "rich.live",
        "pygments",
        "asyncio",
        "markdown_it",
    }
    assert not [name for name in heavy if f"'{name}'" in shown]


def on_a_terminal(words, environment, columns=80, typed=b""):
    """Run the command on a pseudo-terminal; returns its status and everything it wrote there."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    os.write(ours, typed)
    environment = {name: value for name, value in environment.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(
        [*BERTH, *words], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        shown = b""
        with os.fdopen(ours, "rb", buffering=0) as screen:
            try:
                while piece := screen.read(65536):
                    shown += piece
            except OSError:  # the other end is closed
                pass
    return child.returncode, shown.decode(errors="replace")


def test_removing_a_service_asks_on_a_terminal(cli, berth, web, plain):
    job = {"command": ["python", "serve.py"], "source": {"text": SCRIPT}}
    environment = environment_for(web.url, web.tokens["ada"])

    def made() -> None:
        berth.send("POST", "/services", json={"name": "asked", "job": job})

    made()
    status, shown = on_a_terminal(["service", "remove", "asked"], environment, typed=b"n\n")
    assert "Its address and its keys stop working for good" in " ".join(shown.split())
    assert (status, "asked" in cli("service").stdout) == (1, True)
    status, shown = on_a_terminal(["service", "remove", "asked"], environment, typed=b"y\n")
    assert (status, "asked" in cli("service").stdout) == (0, False), shown
    for words in (["--yes"], []):  # a script without a terminal is not asked
        made()
        assert cli("service", "remove", "asked", *words).returncode == 0


def test_operators_reserve_devices_and_everybody_sees_it(cli):
    words = ["calendar", "add", "course", "-d", "1", "--for", "ada", "--from", "20h", "--until", "21h"]
    assert cli(*words).returncode == 2
    made = cli(*words, who="root")
    assert made.returncode == 0, made.stderr
    entry = re.search(r"Added course as (\d+)", made.stdout)
    assert entry

    assert re.search(rf"^{entry[1]} +course +default +1 +ada +20", cli("calendar").stdout, re.MULTILINE)
    assert json.loads(cli("calendar", "--json").stdout)[0]["people"] == ["ada"]
    assert "(--for NAME)" in cli("calendar", "add", "x", "-d", "1", "--from", "1h", who="root").stderr
    assert cli("calendar", "remove", entry[1], who="root").returncode == 0
    assert "Nothing is reserved." in cli("calendar").stderr


def test_jobs_are_delayed_chained_and_submitted_as_arrays(cli, tmp_path):
    (tmp_path / "sweep.py").write_text(SCRIPT)

    shown = cli("run", "sweep.py", "--array", "0-2%1", "--at", "23h", "--name", "sweep", "--json")
    job = json.loads(shown.stdout)
    assert (job["name"], job["array"]["count"], job["array"]["at_most"]) == ("sweep[0]", 3, 1)
    after = json.loads(cli("run", "sweep.py", "--after-any", job["short_id"], "--json").stdout)
    assert after["depends_on"] == [{"job": job["id"], "when": "any"}]
    assert cli("cancel", job["short_id"], "--array").returncode == 0
    left = json.loads(cli("ps", "-n", "20", "--json").stdout)
    assert {each["state"] for each in left if each["id"] in job["array"]["jobs"]} == {"cancelled"}
    cli("cancel", after["short_id"])


def test_project_is_run_as_its_file_says_or_by_the_command_after_the_dashes(cli, tmp_path):
    for name, text in {
        "pkg/__init__.py": "",
        "pkg/train.py": SCRIPT,
        "big.bin": "x",
        ".gitignore": "*.bin\n",
        "berth.toml": 'module = "pkg.train"\ntags = ["from-file"]\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    by_file = cli("run", "--json", "--", "--lr", "1")
    by_command = cli("run", "--json", "--command", "python -m pkg.train", "-g0", "--pool", "default")

    module = json.loads(by_file.stdout)
    assert (module["module"], module["args"], module["tags"]) == ("pkg.train", ["--lr", "1"], ["from-file"])
    assert "using berth.toml (module, tags)" in by_file.stderr
    refused = json.loads(by_command.stderr.splitlines()[-1])
    assert refused["fields"]["gpus"] == [
        "This server has no CPU slots for jobs without a GPU; its operator sets BERTH_CPU_SLOTS."
    ]
    (tmp_path / "berth.toml").write_text("gpuz = 1\n")
    assert "line 1: there is no field 'gpuz'. Was 'gpus' meant?" in cli("run").stderr


def test_show_prints_state_settings_and_newest_values_of_one_job(cli, web):
    shown = cli("show", "tiny-gpt").stdout

    assert re.match(rf"tiny-gpt {web.jobs['running'][-8:]} +\S+ running", shown)
    for said in (
        r"owner +ada",
        r"arguments +--lr 3e-4 --depth 4",
        r"progress +72% step 720/1,000",
        r"last loss +2\.31",
    ):
        assert re.search(f"^{said}", shown, re.MULTILINE), said


def test_kept_packages_and_caches_are_told_also_when_there_are_none(cli):
    assert "Nothing is kept for your jobs yet" in cli("envs").stderr
    assert json.loads(cli("envs", "--json").stdout)["environments"] == []
    refused = cli("envs", "remove", "0123")
    assert (refused.returncode, refused.stderr) == (
        2,
        "berth: No environments have the id '0123'; `berth envs` lists them.\n",
    )


def test_a_name_that_is_part_of_the_id_of_another_job_is_not_cancelled_by_chance(cli, web, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    part = web.jobs["waiting"][-6:-2]
    named = json.loads(cli("run", "train.py", "-n", part, "--json").stdout)["id"]

    refused = cli("cancel", part)
    cancelled = cli("cancel", named)

    assert (refused.returncode, cancelled.returncode) == (2, 0)
    assert f"Several jobs match '{part}'" in refused.stderr
    assert json.loads(cli("show", web.jobs["waiting"], "--json").stdout)["state"] == "queued"


def test_a_name_that_is_part_of_many_ids_still_names_its_job(cli, web, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    part = web.jobs["waiting"][:4]  # of the time at which all began
    named = json.loads(cli("run", "train.py", "-n", part, "--json").stdout)["id"]

    cancelled = cli("cancel", part)

    assert (cancelled.returncode, cancelled.stderr) == (0, "")
    assert json.loads(cli("show", named, "--json").stdout)["state"] == "cancelled"


def test_an_empty_name_uploads_no_folder(cli, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    for words in (("run", ""), ("run", "", "--", "--lr", "1")):
        answer = cli(*words)
        assert (answer.returncode, "name of the script is empty" in answer.stderr) == (2, True)


def test_a_folder_that_cannot_be_written_is_said_as_a_sentence(cli, web):
    for words in (
        ("pull", web.jobs["ended"], "--to", "/proc/x"),
        ("pull", web.jobs["ended"], "--to", "/proc/x", "--json"),
    ):
        answer = cli(*words)
        assert answer.returncode == 2
        assert "/proc/x: No such file or directory." in answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_login_that_cannot_be_stored_is_said_as_a_sentence(cli, web):
    answer = cli("login", web.url, "--token", web.tokens["ada"], env={"XDG_CONFIG_HOME": "/proc/x"})

    assert (answer.returncode, "/proc/x" in answer.stderr, "Traceback" in answer.stderr) == (2, True, False)
