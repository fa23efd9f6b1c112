"""Jobs that really run, followed from the command line and from Python."""

import json
import re
import signal

import pytest

from berth.client import Berth
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

STEPS = """
import os, sys, time
for step in range(1, 41):
    time.sleep(0.05)
    print(f"step {step} loss {1 / step:.4f}", flush=True)
with open(os.path.join(os.environ["BERTH_OUTPUT_DIR"], "result.txt"), "w") as file:
    file.write("done")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
FOREVER = "import time\nprint('on', flush=True)\ntime.sleep(600)\n"
LEARN = """
import sys, time
for step in range(1, 21):
    time.sleep(0.1)
    print(f"step {step} loss {1 / step:.4f}", flush=True)
if "1e-3" in sys.argv:
    raise KeyError("lr")
"""
COUNT = """
import os, pathlib, sys, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
done = int(zipfile.ZipFile(path).read("count")) if "--resume" in sys.argv else 0
print("began at", done, flush=True)
for step in range(done + 1, 9):
    time.sleep(0.2)
    with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
        file.writestr("count", str(step))
    path.with_suffix(".part").replace(path)
    print("step", step, "loss", 1 / step, flush=True)
time.sleep(1 if done else 600)
"""


@pytest.fixture
def berth(lab, plain):
    with Berth(f"http://127.0.0.1:{lab.port}", lab.token) as berth:
        yield berth


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(text)
        return "train.py"

    return write


def test_following_a_run_prints_its_log_and_exits_as_it_does(start_in_lab, script):
    child = start_in_lab("run", "-f", script(STEPS), "--", "7")

    out, err = child.communicate(timeout=PATIENCE_S)

    assert child.returncode == 7
    assert out.splitlines() == [f"step {step} loss {1 / step:.4f}" for step in range(1, 41)]
    assert re.search(r"train \w{8} failed after .*\nSee the error with: berth logs --error \w{8}\n$", err)


def test_waiting_prints_each_state_and_exits_with_0_on_success(start_in_lab, script):
    child = start_in_lab("run", "--wait", script(STEPS))

    out, err = child.communicate(timeout=PATIENCE_S)

    assert (child.returncode, out) == (0, "")
    assert re.search(
        r"Submitted train \w{8}\.\n(.*\n)*train \w{8} running.*\ntrain \w{8} succeeded after", err
    )


def test_an_array_is_waited_for_as_a_whole_and_its_failure_is_the_exit_status(start_in_lab, tmp_path):
    (tmp_path / "third.py").write_text(
        "import os, sys; sys.exit(3 * (os.environ['BERTH_ARRAY_INDEX'] == '1'))"
    )

    child = start_in_lab("run", "third.py", "--array", "0-2", "--wait")
    _, told = child.communicate(timeout=PATIENCE_S)

    assert child.returncode == 3
    assert re.match(r"Submitted third\[0\] \w{8}, the first of 3 jobs\.", told)
    assert [
        len(re.findall(rf"^third\[{index}\] \w{{8}} succeeded", told, re.MULTILINE)) for index in range(3)
    ] == [
        1,
        0,
        1,
    ]


def test_ctrl_c_detaches_and_the_job_continues(start_in_lab, script, berth, lab):
    child = start_in_lab("run", "-f", script(FOREVER))
    assert child.stdout.readline() == "on\n"

    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PATIENCE_S)
    job = next(berth.jobs(state="running", limit=1))

    assert child.returncode == 130
    assert err.endswith(
        f"Detached; train {job.short_id} continues. Come back with: berth watch {job.short_id}\n"
    )
    assert job.refresh().state == "running"
    assert job.cancel().wait(PATIENCE_S).state == "cancelled"


def test_following_survives_a_restart_of_the_server(berth, lab, tmp_path):
    (tmp_path / "train.py").write_text(STEPS.replace("0.05", "0.2"))
    job = berth.run(tmp_path / "train.py")
    lab.wait_for_line(job.id, "step 5 ")

    text = ""
    for part in job.follow(every_s=0.2):
        text += part.text
        if "step 8 " in text and "step 9 " not in text:
            lab.kill_service("web")

    assert text.splitlines() == [f"step {step} loss {1 / step:.4f}" for step in range(1, 41)]
    assert job.state == "succeeded"


def test_common_tasks_need_no_more_words_than_promised(start_in_lab, script, berth, lab):
    def type_in(*words: str) -> tuple[int, str]:
        child = start_in_lab(*words)
        said = "".join(child.communicate(timeout=PATIENCE_S))
        return child.returncode, said

    script(LEARN)
    assert type_in("run", "train.py")[0] == 0
    assert type_in("watch")[0] == 0  # ends with the job
    assert type_in("again", "--wait", "--", "--lr", "1e-3")[0] == 1
    assert "KeyError: 'lr'" in type_in("logs", "--error")[1]
    assert type_in("again", "--wait", "--", "--lr", "1e-4")[0] == 0
    compared = type_in("compare", "-3")[1]
    assert "1e-3" in compared
    assert "1e-4" in compared

    script(FOREVER)
    wide = json.loads(type_in("run", "-g4", "-n", "wide", "train.py", "--json")[1])
    lab.wait_for_state(wide["id"], "running")
    assert type_in("run", "-n", "late", "train.py")[0] == 0
    late = next(berth.jobs(limit=1))
    lab.wait_until(lambda: "none is free" in late.explain().sentence)
    assert "wide" in type_in()[1]
    reason = type_in("why")[1]
    assert reason.startswith(f"late {late.short_id} ")
    assert "Waits for 1 simulated GPU; none is free" in reason
    assert type_in("cancel", "wide")[0] == 0
    assert berth.job(wide["id"]).wait(PATIENCE_S).state == "cancelled"
    assert late.short_id in type_in("cancel")[1]  # the only one that is left
    assert late.wait(PATIENCE_S).state == "cancelled"


def test_what_a_job_wrote_is_pulled_and_its_error_shown(start_in_lab, script, tmp_path):
    beside = "open('scores.csv', 'w').write('epoch,loss')\n"
    start_in_lab("run", "-w", script(beside + STEPS)).communicate(timeout=PATIENCE_S)
    pulled, _ = start_in_lab("pull", "--json").communicate(timeout=PATIENCE_S)
    start_in_lab("run", "-w", script("print('before')\nraise KeyError('lr')\n")).communicate(
        timeout=PATIENCE_S
    )
    error, _ = start_in_lab("logs", "--error").communicate(timeout=PATIENCE_S)

    assert [(tmp_path / path).read_text() for path in json.loads(pulled)] == ["done", "epoch,loss"]
    assert "KeyError" in error.splitlines()[0]
    assert "before\nTraceback" in error


def test_a_cancelled_job_is_resumed_from_its_checkpoint(start_in_lab, script, berth, lab):
    started = json.loads(
        start_in_lab("run", "--json", "--resume-args=--resume", script(COUNT)).communicate(
            timeout=PATIENCE_S
        )[0]
    )
    job = berth.job(started["id"])
    lab.wait_for_line(job.id, "step 8 ")
    lab.wait_until(lambda: job.checkpoints())
    start_in_lab("cancel", job.short_id).communicate(timeout=PATIENCE_S)
    job.wait(PATIENCE_S)

    child = start_in_lab("resume", job.short_id, "-f")
    out, _ = child.communicate(timeout=PATIENCE_S)

    assert child.returncode == 0
    assert out == "began at 8\n"


def test_a_chart_of_a_real_run_has_its_points(start_in_lab, script, berth):
    start_in_lab("run", "-w", script(STEPS)).communicate(timeout=PATIENCE_S)
    job = next(berth.jobs(state="succeeded", limit=1))

    series = job.metrics(["loss"])["loss"]

    assert (series.total, series.x[0], series.y[0]) == (40, 1, 1.0)
    assert job.last_values["loss"] == pytest.approx(0.025)
