"""Recipes for the checkpoints of other trainers: how to recognise and resume each.  Data only."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

ANY_NAME = re.compile(r".*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The layout of one framework's checkpoint folder.

    A folder is a checkpoint if its name matches ``folder`` and it directly contains a file for each of ``marks``.
    """

    framework: str
    marks: tuple[str, ...]  # patterns of names, including the file that is written last
    folder: re.Pattern[str] = ANY_NAME
    step_file: str = ""  # a JSON file in the folder with the step under ``global_step``
    # A file beside the folder that names the newest checkpoint.  The framework resumes from the parent folder then.
    pointer: str = ""


RECIPES = (
    Recipe("Hugging Face Trainer", ("trainer_state.json",), step_file="trainer_state.json"),
    Recipe("torch.distributed.checkpoint", (".metadata",)),
    Recipe("Accelerate", ("random_states_*.pkl",)),
    Recipe("DeepSpeed", ("*_model_states.pt",), pointer="latest"),
    Recipe("Megatron-LM", (), re.compile(r"iter_\d{7}"), pointer="latest_checkpointed_iteration.txt"),
    Recipe("Lightning", ("meta.pt",), re.compile(r".*\.ckpt", re.DOTALL)),
)
POINTERS = frozenset(recipe.pointer for recipe in RECIPES if recipe.pointer)

# For other frameworks: a folder named after the step or the epoch.
NUMBERED_FOLDER = re.compile(
    r"(?:.*[-_=.])?(?:checkpoint|ckpt|chkpt|snapshot|save|step|global_?step|iter|iteration|epoch|ep|update)s?[-_=.]?\d+"
    r"(?:\.ckpt)?|\d+",
    re.IGNORECASE | re.DOTALL,
)

# Files of trackers and loggers, often in the checkpoint folder and open as long as the script runs.
FOREIGN_FILES = ("events.out.tfevents*", "*.tfevents.*", "*.log", "*.lock", "*.pid", "nohup.out")
FOREIGN_FOLDERS = frozenset({"wandb", "mlruns", "__pycache__", ".git", ".aim", ".neptune", ".comet"})
UNFINISHED = (".tmp", ".part", ".partial", ".swp", ".torn", ".incomplete")
UNFINISHED_FOLDER = "tmp-"

CHECKPOINT_SUFFIXES = (
    ".pt",
    ".pth",
    ".ckpt",
    ".bin",
    ".safetensors",
    ".distcp",
    ".pkl",
    ".pickle",
    ".joblib",
    ".npz",
    ".npy",
    ".h5",
    ".hdf5",
    ".keras",
    ".msgpack",
    ".params",
    ".weights",
    ".model",
    ".zip",
    ".tar",
    ".gguf",
)
_DOCUMENT_SUFFIXES = (
    ".txt",
    ".md",
    ".csv",
    ".tsv",
    ".yaml",
    ".yml",
    ".toml",
    ".ini",
    ".cfg",
    ".html",
    ".py",
    ".ipynb",
    ".sh",
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".svg",
    ".pdf",
    ".webp",
    ".mp4",
    ".wav",
    ".jsonl",
    ".out",
    ".err",
)
_POINTER_WORD = re.compile(r"latest|last|newest|checkpoint", re.IGNORECASE)


def is_foreign_file(name: str) -> bool:
    """Whether a file belongs to a tracker or a logger, and so never to a checkpoint."""
    return any(fnmatchcase(name, pattern) for pattern in FOREIGN_FILES)


def is_foreign_folder(name: str) -> bool:
    return name in FOREIGN_FOLDERS or name.startswith(UNFINISHED_FOLDER) or name.endswith(UNFINISHED)


CHECKPOINT_WEIGHT = 2


def weight(name: str) -> int:
    """How likely a file is a checkpoint by its name: 2 for suffixes that trainers use, 0 for documents, 1 otherwise."""
    lower = name.lower()
    if lower.endswith(CHECKPOINT_SUFFIXES):
        return CHECKPOINT_WEIGHT
    if lower.endswith(_DOCUMENT_SUFFIXES) and not _POINTER_WORD.search(lower):
        return 0
    return 1
