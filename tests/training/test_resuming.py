"""Trainers of other packages continue from the checkpoint that Berth chose, and do nothing else differently."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from training.rank import imports
from training.resuming.hook import is_own
from training.resuming.trainers import TRAINERS

ENTRY = Path(__file__).resolve().parents[2] / "training/entry.py"
SITE = ENTRY.with_name("child")
# Laid out as the real packages, each function with its own arguments; it prints what it is given.
STAND_INS = {
    "transformers/__init__.py": "from transformers.trainer import Trainer\n",
    "transformers/trainer.py": """
class Trainer:
    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        "its own words"
        print("trains from", resume_from_checkpoint)
        return "its own answer"
""",
    "lightning/__init__.py": "",
    "lightning/pytorch/__init__.py": "from lightning.pytorch.trainer.trainer import Trainer\n",
    "lightning/pytorch/trainer/__init__.py": "",
    "lightning/pytorch/trainer/trainer.py": """
class Trainer:
    def fit(self, model, train_dataloaders=None, val_dataloaders=None, datamodule=None, ckpt_path=None, weights_only=None):
        print("trains from", ckpt_path, weights_only)
""",
    "pytorch_lightning/__init__.py": "from pytorch_lightning.trainer.trainer import Trainer\n",
    "pytorch_lightning/trainer/__init__.py": "",
    "pytorch_lightning/trainer/trainer.py": """
class Trainer:
    def fit(self, model, train_dataloaders=None, val_dataloaders=None, datamodule=None, ckpt_path=None):
        print("trains from", ckpt_path)
""",
    "ultralytics/__init__.py": "from ultralytics.engine.model import Model\n",
    "ultralytics/engine/__init__.py": "",
    "ultralytics/engine/model.py": """
class Model:
    def train(self, trainer=None, **kwargs):
        print("trains from", kwargs.get("resume"))
""",
}
HUGGING_FACE = "from transformers import Trainer\n"


def torch_file(path: Path, content: object) -> Path:
    """A file laid out as torch.save writes it."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{path.stem}/data.pkl", pickle.dumps(content, protocol=2))
        file.writestr(f"{path.stem}/data/0", b"weights")
    return path


@pytest.fixture
def checkpoints(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "checkpoint-20"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    unfinished = {"epoch": 3, "train_args": {}, "optimizer": {}}
    return {
        "transformers": folder,
        "lightning": torch_file(tmp_path / "last.ckpt", {"pytorch-lightning_version": "2", "epoch": 1}),
        "ultralytics": torch_file(tmp_path / "last.pt", unfinished),
        "finished": torch_file(tmp_path / "done.pt", {**unfinished, "epoch": -1}),
        "other": torch_file(tmp_path / "other.pt", {"step": 3}),
    }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[str]]:
    """Run a script beside the stand-ins, as a rank or as a command's own process; its lines."""

    def run(
        script: str,
        resume: Path | None = None,
        *,
        command: bool = False,
        after_another: bool = False,
        **environment: str,
    ) -> list[str]:
        for name in ("logs", "errors", "finished", "work"):
            (tmp_path / name).mkdir(exist_ok=True)
        for place, text in STAND_INS.items():
            path = tmp_path / "work" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "work" / "train.py").write_text(script)
        resumes = {"BERTH_RESUME_FROM": str(resume), "BERTH_RESUME_TRAINER": "1"} if resume else {}
        variables = {
            "BERTH_ATTEMPT_FOLDER": str(tmp_path),
            "RANK": "0",
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path / 'more'}" if command else "",
            **resumes,
            **environment,
        }
        done = subprocess.run(
            [sys.executable, *([] if command else ["-u", str(ENTRY)]), "train.py"],
            cwd=tmp_path / "work",
            env={name: value for name, value in variables.items() if value},
            capture_output=True,
            text=True,
            check=False,
        )
        log = tmp_path / f"logs/rank{environment.get('RANK', 0)}.log"
        lines = (done.stdout + done.stderr if command else log.read_text()).splitlines()
        log.unlink(missing_ok=True)
        assert done.returncode == 0, lines
        if not after_another:
            for notes in (tmp_path / "logs").glob("*.trainings"):
                notes.rename(tmp_path / "trainings")
        return lines

    return run


SCRIPTS = {
    "transformers": HUGGING_FACE + "print(Trainer().train())\n",
    "lightning": "from lightning.pytorch import Trainer\nTrainer().fit('model', ['data'])\n",
    "pytorch_lightning": "from pytorch_lightning import Trainer\nTrainer().fit('model', datamodule='data')\n",
    "ultralytics": "from ultralytics import Model\nModel().train(data='a.yaml')\n",
}


@pytest.mark.parametrize("package", SCRIPTS)
def test_first_attempt_is_as_without_berth(run, package):
    lines = run(SCRIPTS[package])

    assert lines == run(SCRIPTS[package], TRAINER_RESUME="off")
    assert lines[0].startswith("trains from None")


@pytest.mark.parametrize("package", SCRIPTS)
def test_restarted_trainer_continues_from_its_checkpoint(run, checkpoints, package):
    checkpoint = checkpoints[package.removeprefix("pytorch_")]

    told, trained, *answer = run(SCRIPTS[package], checkpoint)

    assert told.endswith(f"continues from {checkpoint}")
    # The job's own checkpoint may hold objects of the script, so Lightning is let load them, where it asks.
    assert trained == f"trains from {checkpoint}" + (" False" if package == "lightning" else "")
    assert answer == (["its own answer"] if package == "transformers" else [])


@pytest.mark.parametrize("package", SCRIPTS)
def test_checkpoint_of_something_else_is_left_alone(run, checkpoints, package):
    for name in ("other", "finished"):
        assert run(SCRIPTS[package], checkpoints[name])[0].startswith("trains from None")


@pytest.mark.parametrize(
    ("call", "used"),
    [
        ("train('mine')", "mine"),
        ("train(resume_from_checkpoint='mine')", "mine"),
        ("train(resume_from_checkpoint=False)", "False"),
        ("train(trial={'lr': 1})", "None"),
    ],
)
def test_what_the_script_says_itself_goes_before(run, checkpoints, call, used):
    assert run(f"{HUGGING_FACE}Trainer().{call}\n", checkpoints["transformers"]) == [f"trains from {used}"]


@pytest.mark.parametrize("call", ["train(None)", "train(resume_from_checkpoint=None)", "train(None, None)"])
def test_none_in_the_place_of_the_checkpoint_is_no_choice(run, checkpoints, call):
    checkpoint = checkpoints["transformers"]

    assert f"trains from {checkpoint}" in run(f"{HUGGING_FACE}Trainer().{call}\n", checkpoint)


def test_second_training_of_a_script_begins_as_it_did(run, checkpoints):
    checkpoint = checkpoints["transformers"]
    twice = f"{HUGGING_FACE}Trainer().train()\nTrainer().train()\n"

    trained = [line for line in run(twice, checkpoint) if line.startswith("trains")]

    assert trained == [f"trains from {checkpoint}", "trains from None"]


def test_beginnings_of_the_first_two_trainings_are_noted(run, tmp_path):
    run(HUGGING_FACE + "for _ in range(4): Trainer().train()\n")

    first, second = map(int, (tmp_path / "trainings").read_text().split())
    assert first < second


@pytest.mark.parametrize(
    ("rank", "resumes"), [({"RANK": "1"}, True), ({"RANK": "", "LOCAL_RANK": "1"}, True), ({}, False)]
)
def test_later_process_of_a_command_does_not_get_the_checkpoint_of_the_first(run, checkpoints, rank, resumes):
    """Each rank of the first process does."""
    script, checkpoint = SCRIPTS["transformers"], checkpoints["transformers"]
    run(script, checkpoint, command=True, after_another=True)

    lines = run(script, checkpoint, command=True, after_another=True, **rank)

    assert (f"trains from {checkpoint}" in lines) == resumes


def test_without_the_servers_word_or_with_the_owners_nothing_resumes(run, checkpoints):
    checkpoint = checkpoints["transformers"]

    assert "trains from None" in run(SCRIPTS["transformers"], checkpoint, BERTH_RESUME_TRAINER="")
    assert "trains from None" in run(SCRIPTS["transformers"], checkpoint, TRAINER_RESUME="off")


def test_process_of_a_command_resumes_and_keeps_the_environments_own_start(run, checkpoints, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more/sitecustomize.py").write_text("print('the one of the environment')\n")
    checkpoint = checkpoints["transformers"]

    lines = run(HUGGING_FACE + "Trainer().train()\nimport sys\nprint(sys.path)\n", checkpoint, command=True)

    assert lines[:2] == ["the one of the environment", f"trains from {checkpoint}"]
    assert str(SITE) not in lines[2]
    assert lines[3].endswith(f"continues from {checkpoint}")


def test_script_whose_own_module_is_called_training_resumes(run, checkpoints, tmp_path):
    checkpoint = checkpoints["transformers"]
    (tmp_path / "work").mkdir()
    (tmp_path / "work/training.py").write_text("MINE = True\n")

    lines = run("import training\nassert training.MINE\n" + SCRIPTS["transformers"], checkpoint)

    assert f"trains from {checkpoint}" in lines


def test_the_entry_watches_each_trainer_of_the_table():
    watched = {call.module.partition(".")[0] for trainer in TRAINERS for call in trainer.calls}

    assert watched == imports.TRAINERS


def test_marks_are_read_without_loading_what_a_file_holds(tmp_path):
    lightning = next(trainer for trainer in TRAINERS if trainer.name == "Lightning")
    content = io.BytesIO()
    pickle.dump({"pytorch-lightning_version": os.system}, content)
    with zipfile.ZipFile(tmp_path / "hostile.ckpt", "w") as file:
        file.writestr("hostile/data.pkl", content.getvalue() + b"cno.such.module\nthing\n.")

    assert is_own(str(tmp_path / "hostile.ckpt"), lightning.marks)
    for text in (b"", b"PK\x03\x04 cut short"):
        (tmp_path / "torn.ckpt").write_bytes(text)
        assert not is_own(str(tmp_path / "torn.ckpt"), lightning.marks)
    assert not is_own(str(tmp_path / "none.ckpt"), lightning.marks)
