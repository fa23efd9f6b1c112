"""The trainers that Berth knows: how each is recognised, where it saves, and what resumes it.  Data only.

The entry of each rank reads ``Call``, so that a trainer resumes without a change; the server tells a job's owner what
to ``add`` for the others; the guide's table is made from all of it.
"""

from typing import Final, NamedTuple


class Call(NamedTuple):
    """A function that trains, and the argument of it that names a checkpoint."""

    module: str
    function: str
    arguments: str  # by position, without self
    argument: str
    unless: str = ""  # another argument: with it the function trains something else than a job's only model
    also: tuple[
        tuple[str, object], ...
    ] = ()  # arguments to give with it, where the function has them and they are None


class Mark(NamedTuple):
    """What tells a trainer's own checkpoint from any other file; nothing is unpickled."""

    file: str = ""  # in a folder: this file is directly inside
    pickled: bytes = b""  # in a file of torch.save: a pattern that its description of the content has
    never: bytes = b""  # one that it must not have


class Trainer(NamedTuple):
    """One trainer.  It resumes by ``calls``, if it has some, or else once its owner adds what ``add`` says."""

    name: str
    packages: tuple[str, ...]  # imported by a script, or the program of a command
    saves: str
    uses: str = ""  # a pattern in the code that trains with it, rather than only taking parts of the package
    calls: tuple[Call, ...] = ()
    marks: tuple[Mark, ...] = ()
    add: str = ""  # code for the script
    loads: str = ""  # a pattern in code that does what ``add`` says


_FIT = "model train_dataloaders val_dataloaders datamodule ckpt_path weights_only"
# The job's own checkpoint may hold any object of its script, which torch would refuse to load.
_WHOLE = (("weights_only", False),)
_IF_RESUMED = "if path := os.environ.get('BERTH_RESUME_FROM'): "
TRAINERS: Final = (
    Trainer(
        "Hugging Face Trainer, TRL",
        ("transformers", "trl"),
        "`checkpoint-200/`",
        uses=r"Trainer\b",
        calls=(
            Call(
                "transformers.trainer",
                "Trainer.train",
                "resume_from_checkpoint trial",
                "resume_from_checkpoint",
                unless="trial",
            ),
        ),
        marks=(Mark(file="trainer_state.json"),),
    ),
    Trainer(
        "Lightning",
        ("lightning", "pytorch_lightning"),
        "`epoch=3-step=1200.ckpt`, or a folder of that name",
        uses=r"\bTrainer\b|LightningCLI",
        calls=(
            Call("lightning.pytorch.trainer.trainer", "Trainer.fit", _FIT, "ckpt_path", also=_WHOLE),
            Call("pytorch_lightning.trainer.trainer", "Trainer.fit", _FIT, "ckpt_path", also=_WHOLE),
        ),
        marks=(Mark(pickled=b"pytorch-lightning_version"), Mark(file="meta.pt")),
    ),
    Trainer(
        "Ultralytics",
        ("ultralytics", "yolo"),
        "`runs/detect/train/weights/last.pt`",
        calls=(Call("ultralytics.engine.model", "Model.train", "trainer", "resume"),),
        # At the end of a training the file keeps the weights alone, with epoch -1.
        marks=(Mark(pickled=b"train_args", never=rb"epoch(q.|r.{4})J\xff\xff\xff\xff"),),
    ),
    Trainer(
        "Accelerate",
        ("accelerate",),
        "`step_80/` of `save_state`",
        uses=r"\bAccelerator\b",
        add=_IF_RESUMED + "accelerator.load_state(path)",
        loads=r"\bload_state\(",
    ),
    Trainer(
        "Keras",
        ("keras",),
        "`latest.weights.h5` of `BackupAndRestore`",
        uses=r"\.fit\(",
        # A folder below: the callback removes its folder at the end of the training.
        add="keras.callbacks.BackupAndRestore(os.environ['BERTH_CHECKPOINT_DIR'] + '/backup')",
        loads=r"BackupAndRestore|load_model|load_weights",
    ),
    Trainer(
        "Stable-Baselines3",
        ("stable_baselines3", "sb3_contrib"),
        "`rl_model_1000_steps.zip` of `CheckpointCallback`",
        uses=r"\.learn\(",
        add=_IF_RESUMED + "model = type(model).load(path, model.get_env())",
        loads=r"set_parameters\(|\.load\(",
    ),
    Trainer(
        "DeepSpeed",
        ("deepspeed",),
        "`global_step100/` and `latest`",
        uses=r"\bdeepspeed\.initialize",
        add=_IF_RESUMED + "engine.load_checkpoint(path)",
        loads=r"load_checkpoint\(",
    ),
    Trainer(
        "PyTorch",
        ("torch", "timm"),
        "`step_5000.pt`, `epoch_3/`, `last.pth.tar`",
        uses=r"\btorch\.save\(|CheckpointSaver",
        add=_IF_RESUMED + "checkpoint = torch.load(path)",
        loads=r"\btorch\.load\(|resume_checkpoint\(",
    ),
)
WATCHED: Final = frozenset(call.module for trainer in TRAINERS for call in trainer.calls)
