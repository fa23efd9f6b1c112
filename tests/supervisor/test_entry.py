"""The rank entry behaves like ``python script.py`` and leaves its records."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pythons import PLACES

ENTRY = Path(__file__).resolve().parents[2] / "training/entry.py"


def run_entry(
    tmp_path: Path,
    script: str,
    *args: str,
    rank: int = 0,
    python: str = sys.executable,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` through the entry in an attempt folder at ``tmp_path``; output is in its log."""
    for name in ("logs", "errors", "finished", "work"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "work/train.py").write_text(script)
    return subprocess.run(
        [python, "-u", str(ENTRY), "train.py", *args],
        cwd=tmp_path / "work",
        env={"BERTH_ATTEMPT_FOLDER": str(tmp_path), "RANK": str(rank), "LANG": "C.UTF-8", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_python(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-u", "train.py", *args],
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=False,
    )


def log(tmp_path: Path, rank: int = 0) -> str:
    return (tmp_path / f"logs/rank{rank}.log").read_text()


SCRIPTS = {
    "names": "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], __spec__, __package__)",
    "helper next to it": "import json, sys\nprint(sys.path[0] in sys.path, '__main__' in sys.modules)",
    "own main": "import __main__\nx = 1\nprint(__main__.x)",
    "exit": "import sys\nsys.exit()",
    "exit 3": "import sys\nsys.exit(3)",
    "exit 256": "import sys\nsys.exit(256)",
    "exit -1": "import sys\nsys.exit(-1)",
    "exit text": "import sys\nsys.exit('that was all')",
    "raises": "def f():\n    raise ValueError('no')\nf()",
    "raises from": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise OSError('x') from error",
    "own excepthook": "import sys\nsys.excepthook = lambda kind, *_: print('hook', kind.__name__)\n1 / 0",
    "syntax error": "x = 1\ndef f(:\n",
    "latin-1": "# -*- coding: latin-1 -*-\nprint(len('\\xe4'))",
    "atexit": "import atexit\natexit.register(print, 'at exit')\nprint('body')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "dataclass pickle": "import pickle, dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\n"
    "print(pickle.loads(pickle.dumps(A(1))))",
    "future": "from __future__ import annotations\ndef f(x: nonsense): ...\nprint(f.__annotations__)",
    "no future of ours": "print((lambda: 0).__code__.co_flags & 0x1000000)",
    "closed stdout": "import sys\nsys.stdout.close()",
    "fork falls off the end": "import os\nif os.fork():\n    os.wait()\n",
    "interrupt": "raise KeyboardInterrupt",
    "memory error": "raise MemoryError",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_output_and_exit_code_are_those_of_plain_python(tmp_path: Path, name: str) -> None:
    ours = run_entry(tmp_path, SCRIPTS[name], "--lr", "1;$(x)")
    plain = run_python(tmp_path, "--lr", "1;$(x)")

    assert log(tmp_path) == plain.stdout + plain.stderr
    assert ours.returncode == plain.returncode


@pytest.mark.parametrize(("script", "code"), [("pass", "0"), ("import sys; sys.exit(3)", "3")])
def test_the_marker_holds_the_code_of_a_script_that_returned(tmp_path: Path, script: str, code: str) -> None:
    run_entry(tmp_path, script, rank=1)

    assert (tmp_path / "finished/rank1").read_text().strip() == code
    assert not (tmp_path / "errors/rank1.json").exists()


@pytest.mark.parametrize("end", ["", "raise ValueError", "gc.freeze()", "sys.exit(3)"])
def test_files_that_were_left_open_are_whole_at_the_end(tmp_path: Path, end: str) -> None:
    run_entry(
        tmp_path,
        f"""import gc, gzip, io, sys
text = open("text", "w")
text.write("last line")
raw = open("raw", "wb")
raw.write(b"bytes")
packed = io.TextIOWrapper(gzip.open("packed.gz", "wb"))
packed.write("packed")
{end}
""",
    )

    assert (tmp_path / "work/text").read_text() == "last line"
    assert (tmp_path / "work/raw").read_bytes() == b"bytes"
    assert gzip.decompress((tmp_path / "work/packed.gz").read_bytes()) == b"packed"


def test_a_file_that_a_thread_never_lets_go_does_not_keep_a_script_from_its_end(tmp_path: Path) -> None:
    script = """import os, threading, time
read, write = os.pipe()
full = os.fdopen(write, "wb")
threading.Thread(target=full.write, args=(bytes(1 << 20),), daemon=True).start()
time.sleep(0.2)
"""
    shutil.copy(ENTRY, tmp_path)
    shutil.copytree(ENTRY.parent / "rank", tmp_path / "rank", ignore=shutil.ignore_patterns("__pycache__"))
    ending = tmp_path / "rank/ending.py"
    ending.write_text(ending.read_text().replace("_FILES_WITHIN_S = 10.0", "_FILES_WITHIN_S = 0.2"))
    (tmp_path / "train.py").write_text(script)

    subprocess.run([sys.executable, "entry.py", "train.py"], cwd=tmp_path, timeout=8, check=True)


def test_an_exception_leaves_torchruns_record_and_no_marker(tmp_path: Path) -> None:
    torchruns = tmp_path / "torchrun.json"
    run_entry(
        tmp_path,
        "def load():\n    raise ValueError('bad')\nload()",
        rank=1,
        TORCHELASTIC_ERROR_FILE=str(torchruns),
    )

    record = json.loads((tmp_path / "errors/rank1.json").read_text())["message"]
    assert record["message"] == "ValueError: bad"
    assert record["extraInfo"]["py_callstack"].count("File ") == 2  # the module and load(), nothing of ours
    assert record["extraInfo"]["timestamp"].isdigit()
    assert json.loads(torchruns.read_text())["message"] == record
    assert not (tmp_path / "finished/rank1").exists()


def test_an_exception_that_cannot_be_shown_is_recorded_all_the_same(tmp_path: Path) -> None:
    run_entry(tmp_path, "class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd")

    assert json.loads((tmp_path / "errors/rank0.json").read_text())["message"]["message"].startswith("Odd: ")


def test_a_text_that_a_script_exits_with_is_why_it_ended(tmp_path: Path) -> None:
    run_entry(tmp_path, "import sys\nsys.exit('no folder ./data/imagenet')")

    record = json.loads((tmp_path / "errors/rank0.json").read_text())["message"]
    assert record["message"] == "SystemExit: no folder ./data/imagenet"
    assert (tmp_path / "finished/rank0").read_text() == "1\n"
    assert log(tmp_path) == "no folder ./data/imagenet\n"


def test_a_script_that_is_not_there_is_told(tmp_path: Path) -> None:
    for name in ("logs", "errors", "finished"):
        (tmp_path / name).mkdir()
    subprocess.run(
        [sys.executable, str(ENTRY), "missing.py"],
        env={"BERTH_ATTEMPT_FOLDER": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )

    assert "missing.py" in json.loads((tmp_path / "errors/rank0.json").read_text())["message"]["message"]


def test_spawned_workers_find_what_the_script_defines(tmp_path: Path) -> None:
    script = """
import multiprocessing
def square(x):
    return x * x
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(square, [3]))
"""
    assert run_entry(tmp_path, script).returncode == 0
    assert log(tmp_path) == "spawn [9]\nfork [9]\nforkserver [9]\n"


def test_a_child_forked_by_hand_does_not_mark_the_rank_as_finished(tmp_path: Path) -> None:
    script = (
        "import os, sys\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\nprint(os.listdir('../finished'))"
    )
    run_entry(tmp_path, script)

    assert log(tmp_path) == "[]\n"


def test_the_end_of_a_process_can_be_handed_to_another_one(tmp_path: Path) -> None:
    script = """
import multiprocessing, os, pickle
if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(os._exit)) is os._exit, os._exit.__name__)
    ended = multiprocessing.get_context("spawn").Process(target=os._exit, args=(3,))
    ended.start()
    ended.join()
    print(ended.exitcode)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(repr, (os._exit,)))
"""
    assert run_entry(tmp_path, script).returncode == 0
    assert log(tmp_path) == f"True _exit\n3\n{os._exit!r}\n"


WORKERS = {
    "pool": "import concurrent.futures as futures\nfork = multiprocessing.get_context('fork')\n"
    "pool = futures.ProcessPoolExecutor(1, fork)\npool.submit(int).result()\n",
    "daemon process": "fork = multiprocessing.get_context('fork')\n"
    "fork.Process(target=time.sleep, args=(3600,), daemon=True).start()\n",
}


@pytest.mark.parametrize("name", WORKERS)
def test_workers_of_a_script_that_leaves_at_once_are_no_daemons(tmp_path: Path, name: str) -> None:
    pids = "print(*(worker.pid for worker in multiprocessing.active_children()))"
    run_entry(tmp_path, f"import multiprocessing, os, time\n{WORKERS[name]}{pids}\nos._exit(0)\n")
    for pid in log(tmp_path).split():
        os.kill(int(pid), signal.SIGKILL)

    assert not (tmp_path / "finished/left0").exists()


def test_a_copy_that_becomes_a_daemon_after_its_rank_left_is_counted(tmp_path: Path) -> None:
    script = (
        "import os, time\nif os.fork():\n    os._exit(0)\n"
        "time.sleep(0.1)\nos.setsid()\nos.closerange(0, 3)\ntime.sleep(2)\n"
    )
    run_entry(tmp_path, script)

    assert (tmp_path / "finished/left0").read_text() == "1\n"


FORKS = {
    "a fork": "if os.fork():\n    os._exit(0)\n",
    "a fork that forked and left": "if os.fork():\n    os.wait()\n    os._exit(0)\nif os.fork():\n    os._exit(0)\n",
}


@pytest.mark.parametrize("name", FORKS)
def test_a_fork_that_outlives_its_script_is_counted_in_the_same_session_too(
    tmp_path: Path, name: str
) -> None:
    run_entry(tmp_path, f"import os, time\n{FORKS[name]}os.closerange(0, 3)\ntime.sleep(3)\n")

    assert (tmp_path / "finished/left0").read_text() == "1\n"


@pytest.mark.parametrize(
    "script",
    [
        "if os.fork() == 0:\n    os._exit(0)\nos.wait()\n",  # it was waited for
        "if os.fork() == 0:\n    os.execlp('sleep', 'sleep', '1')\n",  # another program
        "if os.fork() == 0:\n    time.sleep(0.1)\n    os._exit(0)\n",  # it ends just after
        # a worker's own fork ends with the worker
        "def work():\n    if os.fork() == 0:\n        time.sleep(2)\n    os.wait()\n"
        "multiprocessing.get_context('fork').Process(target=work, daemon=True).start()\ntime.sleep(0.5)\n",
    ],
)
def test_other_forks_are_not_counted(tmp_path: Path, script: str) -> None:
    run_entry(tmp_path, f"import multiprocessing, os, time\n{script}os._exit(0)\n")

    assert not (tmp_path / "finished/left0").exists()


def test_sigterm_does_what_it_does_to_python(tmp_path: Path) -> None:
    ended = run_entry(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")

    assert ended.returncode == -signal.SIGTERM
    assert list((tmp_path / "finished").iterdir()) == []


def test_the_training_library_can_be_imported_but_never_hides_a_users_module(tmp_path: Path) -> None:
    run_entry(tmp_path, "import training\nprint(training.__file__)")
    assert log(tmp_path).endswith("training/__init__.py\n")

    (tmp_path / "work/training.py").write_text("")
    run_entry(tmp_path, "import training\nprint(training.__file__)")
    assert log(tmp_path).endswith("/work/training.py\n")

    (tmp_path / "work/training.py").unlink()
    (tmp_path / "work/training").mkdir()
    (tmp_path / "work/training/1.png").write_text("a folder of samples")
    run_entry(tmp_path, "import training\nprint(training.__file__)")
    assert log(tmp_path).endswith("training/__init__.py\n")
    (tmp_path / "work/training/loop.py").write_text("print('theirs')")
    run_entry(tmp_path, "import training.loop")
    assert log(tmp_path).endswith("\ntheirs\n")


def test_a_recipe_runs_beside_a_users_package_called_training(tmp_path: Path) -> None:
    """``python -m training.recipes`` is ours; what the user's own code imports as training is the user's."""
    for name in ("logs", "errors", "finished", "work/training"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/training/__init__.py").write_text("")
    (tmp_path / "work/training/loop.py").write_text(
        "import torch\nNet = lambda: torch.nn.Linear(2, 1)\nprint('theirs')"
    )
    (tmp_path / "work/train.py").write_text(
        "import torch\nfrom training.loop import Net\nbuild_model = Net\n"
        "def build_dataset():\n    return torch.zeros(8, 2), torch.zeros(8, 1)\n"
    )
    weights = "import torch; torch.save(torch.nn.Linear(2, 1).state_dict(), 'weights.pt')"
    subprocess.run([sys.executable, "-c", weights], cwd=tmp_path / "work", check=True)

    ran = subprocess.run(
        [
            *(
                sys.executable,
                "-u",
                str(ENTRY),
                "-m",
                "training.recipes",
                "evaluate",
                "--weights",
                "weights.pt",
            ),
            *("--model", "train.py:build_model", "--data", "train.py:build_dataset"),
        ],
        cwd=tmp_path / "work",
        env={
            "BERTH_ATTEMPT_FOLDER": str(tmp_path),
            "RANK": "0",
            "LANG": "C.UTF-8",
            "BERTH_OUTPUT_DIR": str(tmp_path),
        },
        capture_output=True,
        check=False,
    )

    assert ran.returncode == 0, log(tmp_path)
    assert "theirs" in log(tmp_path)


def test_a_model_file_may_import_from_a_users_package_called_training(tmp_path: Path) -> None:
    for name in ("logs", "errors", "finished", "work/training"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/training/nets.py").write_text("import torch\nNet = lambda: torch.nn.Linear(2, 1)\n")
    (tmp_path / "work/model.py").write_text(
        "import torch\nfrom training.nets import Net\nbuild_model = Net\n"
        "def build_dataset(path):\n    return torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))\n"
        "def loss_fn(outputs, targets):\n    return (outputs - targets).square().mean()\n"
    )

    ran = subprocess.run(
        [
            sys.executable,
            "-u",
            str(ENTRY),
            str(ENTRY.parent / "__main__.py"),
            "model.py",
            "--epochs",
            "1",
            "--batch-size",
            "4",
        ],
        cwd=tmp_path / "work",
        env={"BERTH_ATTEMPT_FOLDER": str(tmp_path), "RANK": "0", "LANG": "C.UTF-8"},
        capture_output=True,
        check=False,
    )

    assert ran.returncode == 0, log(tmp_path)


def test_a_users_module_of_a_users_package_called_training_is_run(tmp_path: Path) -> None:
    for name in ("logs", "errors", "finished", "work/training"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/training/recipes.py").write_text("print('theirs', __name__)")

    subprocess.run(
        [sys.executable, "-u", str(ENTRY), "-m", "training.recipes"],
        cwd=tmp_path / "work",
        env={"BERTH_ATTEMPT_FOLDER": str(tmp_path), "RANK": "0", "LANG": "C.UTF-8"},
        check=True,
    )

    assert log(tmp_path) == "theirs __main__\n"


def test_by_hand_it_needs_no_attempt_folder(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("print('by hand')")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}

    ran = subprocess.run(
        [sys.executable, ENTRY, script], env=environment, capture_output=True, text=True, check=True
    )

    assert ran.stdout == "by hand\n"


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_script_runs_on_an_older_python_of_an_image(tmp_path: Path, version: str) -> None:
    python = python_of(version)
    package = tmp_path / "work/training"  # a name that ours must leave to the user
    package.mkdir(parents=True)
    (package / "steps.py").write_text("count = 3")
    script = "import sys\nfrom training.steps import count\nprint(sys.version_info[:2], count)"

    ended = run_entry(tmp_path, script, python=python, BERTH_STACKS_ON_SIGUSR2="1")

    shown = tuple(map(int, version.split(".")))
    assert (ended.stderr, log(tmp_path)) == ("", f"{shown} 3\n")
    assert (tmp_path / "finished/rank0").read_text() == "0\n"


def python_of(version: str) -> str:
    """A Python older than those that Berth itself runs on; skips the test where this machine has none."""
    folders = (Path(place).expanduser() for place in PLACES)
    candidates = [
        path for folder in folders for path in Path("/").glob(f"{folder}/python{version}".lstrip("/"))
    ]
    for path in candidates:
        asked = subprocess.run([path, "-c", "pass"], capture_output=True, check=False)
        if asked.returncode == 0:
            return str(path)
    pytest.skip(f"no Python {version} on this machine")


def test_the_gpu_memory_limit_waits_for_torch_and_touches_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "work/torch").mkdir(parents=True)
    (tmp_path / "work/torch/__init__.py").write_text("from torch import cuda")
    (tmp_path / "work/torch/cuda.py").write_text(
        "queued = []\n_lazy_call = queued.append\ndef set_per_process_memory_fraction(f): print('fraction', f)"
    )
    script = "import sys, os\nassert 'torch' not in sys.modules\nimport torch\nprint(len(torch.cuda.queued))\ntorch.cuda.queued[0]()"

    run_entry(tmp_path, script, BERTH_GPU_MEMORY_FRACTION="0.5")

    assert log(tmp_path) == "1\nfraction 0.5\n"


@pytest.mark.slow
def test_the_gpu_memory_limit_is_queued_in_the_torch_that_is_installed(tmp_path: Path) -> None:
    script = "import torch\nprint(len(torch.cuda._queued_calls), torch.cuda.is_initialized())"
    run_entry(tmp_path, script)
    run_entry(tmp_path, script, BERTH_GPU_MEMORY_FRACTION="0.5")

    without, limited = (int(line.split()[0]) for line in log(tmp_path).splitlines())
    assert limited == without + 1


@pytest.mark.slow
def test_a_gloo_rank_leaves_its_process_group_and_ends_with_0(tmp_path: Path) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
print("trained", flush=True)
"""
    ended = run_entry(
        tmp_path,
        script,
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        GLOO_SOCKET_IFNAME="lo",
    )

    assert ended.returncode == 0, log(tmp_path)
    assert (tmp_path / "finished/rank0").exists()


@pytest.mark.code("F51")
def test_a_full_disk_costs_lines_of_the_log_and_not_the_training(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank0.log").symlink_to("/dev/full")
    script = "import sys\nprint('lost')\nsys.stderr.write('lost, too')\nopen('went-on', 'w').close()\n"

    done = run_entry(tmp_path, script)

    assert done.returncode == 0
    assert (tmp_path / "work/went-on").exists()


@pytest.mark.code("F51")
def test_the_log_says_how_much_a_full_disk_has_cost(tmp_path):
    log_path = tmp_path / "logs/rank0.log"
    script = f"""
import os
print('before')
log, full = os.open({str(log_path)!r}, os.O_WRONLY | os.O_APPEND), os.open('/dev/full', os.O_WRONLY)
os.dup2(full, 1)
print('lost')
os.dup2(log, 1)
print('after')
"""

    run_entry(tmp_path, script)

    assert log(tmp_path).split("\n")[:4] == [
        "before",
        "",
        "[berth: 5 bytes were not logged, the disk was full]",
        "after",
    ]
