"""The trainers of the matrix: from which package each comes, the script that starts it, and how.  Data only."""

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")
ADD_HERE = "# ADD\n"  # in a script: where the code belongs that Berth says to add


@dataclass(frozen=True, slots=True)
class Row:
    """One trainer; a run of it has ``ranks`` ranks.

    With ``hold_at`` the script waits at that many samples in its first attempt, until it is killed.
    """

    name: str
    title: str
    script: str
    packages: tuple[str, ...]
    package: str  # whose version is told
    ranks: tuple[int, ...] = (1, 2)
    args: tuple[str, ...] = ()  # {ranks} is their number
    command: tuple[str, ...] = ()
    hold_at: int = 80
    # What it prints or logs at all.
    told: tuple[str, ...] = ("loss", "learning rate", "throughput", "progress", "total")

    @property
    def text(self) -> str:
        return (SCRIPTS / self.script).read_text()


# torchvision's wheel fits the torch of the same index alone; a server with another build of torch has no fitting one.
_OWN_TORCH = "torch<2.13"
_CLI = ("fit", "--trainer.max_steps=24", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=2")
_CLI_SAVES = (
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.every_n_train_steps=8",
)
ROWS = (
    Row("torchrun", "plain torchrun", "torchrun_loop.py", (), "torch"),
    Row(
        "transformers5",
        "Hugging Face Trainer",
        "hf_trainer.py",
        ("transformers>=5,<6", "accelerate"),
        "transformers",
    ),
    Row(
        "transformers4",
        "Hugging Face Trainer",
        "hf_trainer.py",
        ("transformers<5", "accelerate"),
        "transformers",
    ),
    Row(
        "trl",
        "TRL, `trl sft`",
        "trl_sft.sh",
        ("trl",),
        "trl",
        ranks=(1,),
        command=("bash", "train.py"),  # what a text is stored as
        hold_at=0,
    ),
    Row("accelerate", "Accelerate", "accelerate_loop.py", ("accelerate",), "accelerate"),
    Row(
        "lightning",
        "Lightning, `Trainer.fit`",
        "lightning_fit.py",
        ("lightning",),
        "lightning",
    ),
    Row(
        "lightning-cli",
        "Lightning, `LightningCLI`",
        "lightning_cli.py",
        ("lightning[pytorch-extra]",),
        "lightning",
        args=(*_CLI, *_CLI_SAVES, "--trainer.devices={ranks}"),
        told=("loss", "throughput", "progress", "total"),
    ),
    Row("deepspeed", "DeepSpeed", "deepspeed_loop.py", ("deepspeed",), "deepspeed"),
    Row(
        "timm",
        "timm",
        "timm_train.py",
        ("timm", _OWN_TORCH),
        "timm",
        ranks=(1,),
        hold_at=60,
        told=("loss", "learning rate", "throughput", "progress"),
    ),
    Row(
        "ultralytics",
        "Ultralytics",
        "yolo_train.py",
        ("ultralytics", "opencv-python-headless", _OWN_TORCH),
        "ultralytics",
        ranks=(1,),
        hold_at=0,
        told=("loss", "throughput", "progress", "total"),
    ),
    Row(
        "keras",
        "Keras on torch, `BackupAndRestore`",
        "keras_fit.py",
        ("keras",),
        "keras",
        ranks=(1,),
        told=("loss", "throughput", "progress", "total"),
    ),
    Row(
        "sb3",
        "Stable-Baselines3",
        "sb3_ppo.py",
        ("stable-baselines3",),
        "stable-baselines3",
        ranks=(1,),
        hold_at=640,
        told=("loss", "learning rate", "throughput", "progress", "total"),
    ),
)
