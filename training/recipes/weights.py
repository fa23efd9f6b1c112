"""The weights of a model on disk: read without unpickling, and written as a checkpoint that Berth keeps."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from training.checkpoint import store
from training.recipes import low_bits
from training.recipes.measure import answer, device_of
from training.recipes.named import RecipeError, Samples

ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_HOLDERS = ("model", "state_dict", "model_state_dict", "module", "net")  # where trainings keep the weights
_WRAPPERS = ("module.", "_orig_mod.", "model.")  # prefixes of DistributedDataParallel, compile and Lightning


def find_file(place: Path) -> Path:
    """The file with the weights: the place itself, or the only one of its kind in that folder.

    Raises:
        RecipeError: there is no such file, or several.
    """
    if place.is_file():
        return place
    if not place.is_dir():
        raise RecipeError(f"The model's files are gone: {place} is not there.")
    files = sorted(each for each in place.iterdir() if each.suffix in ENDINGS)
    if len(files) > 1:
        files = [each for each in files if each.name == store.STATE] or files
    if len(files) == 1:
        return files[0]
    names = ", ".join(each.name for each in files or sorted(place.iterdir()))[:300]
    problem = "several files of weights" if files else "no file of weights"
    raise RecipeError(
        f"The model has {problem} ({names or 'it is empty'}); recipes read one of {', '.join(ENDINGS)}."
    )


def read(place: Path) -> dict[str, Tensor]:
    """Read a model's weights by name.

    Raises:
        RecipeError: the file is damaged, holds objects that would be unpickled, or holds no weights.
    """
    path = find_file(place)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0][:200]
        raise RecipeError(
            f"The model's file {path.name} is damaged, or holds more than tensors and plain values: {first}"
        ) from error
    weights = _weights_in(found)
    if weights is None:
        raise RecipeError(
            f"{path.name} holds no weights; save the model's state_dict(), alone or as one of {', '.join(_HOLDERS)}."
        )
    return weights


def _weights_in(found: Any) -> dict[str, Tensor] | None:
    if not isinstance(found, Mapping):
        return None
    for name in _HOLDERS:
        if isinstance(found.get(name), Mapping) and (inner := _weights_in(found[name])):
            return inner
    weights = {str(key): value for key, value in found.items() if isinstance(value, Tensor)}
    return weights if weights and len(weights) == len(found) else None


def load_into(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Load weights into a model; int8 and int4 weights of the recipe ``quantize`` are recognised.

    Raises:
        RecipeError: the model has other parameters.
    """
    weights = _unwrapped(model, weights)
    for key in weights:
        module, separator, rest = key.rpartition(".parametrizations.")
        if (not separator and not key.startswith("parametrizations.")) or not key.endswith(".original1"):
            continue
        name = (rest if separator else key.removeprefix("parametrizations.")).split(".")[0]
        levels = weights[f"{key.removesuffix('1')}0"]
        low_bits.keep_in(low_bits.bits_of(levels), model.get_submodule(module), name)
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise RecipeError(
            f"The weights do not fit the model that the code builds: {' '.join(lines[1:4]).strip()[:400]}"
        ) from error
    return model


def _unwrapped(model: nn.Module, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    own = {key.split(".")[0] for key in model.state_dict()}
    for prefix in _WRAPPERS:
        if all(key.startswith(prefix) for key in weights) and prefix[:-1] not in own:
            return {key.removeprefix(prefix): value for key, value in weights.items()}
    return weights


def save_weights(model: nn.Module, step: int = 1) -> Path:
    """Write a model's weights as a checkpoint of this job; returns its folder."""
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    return save_files({store.STATE: lambda file: torch.save({"model": weights}, file)}, step)


@torch.no_grad()
def save_answers(model: nn.Module, samples: Samples) -> Path:
    """Write a model's answers to all samples into the output folder, as one tensor of shape (samples, ...)."""
    device = device_of(model)
    found = [answer(model, tuple(each.to(device) for each in inputs)).cpu() for inputs, _ in samples]
    path = Path(os.environ.get("BERTH_OUTPUT_DIR") or ".") / "answers.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.cat(found), path)
    return path


def save_files(writers: Mapping[str, Callable[[BinaryIO], object]], step: int = 1) -> Path:
    """Write files as one checkpoint of this job, which appears when all of them are complete."""
    folder = Path(os.environ.get("BERTH_CHECKPOINT_DIR") or "checkpoints")
    attempt = int(os.environ.get("BERTH_ATTEMPT") or 1)
    place = store.Place(attempt, step, folder / f"{attempt}-{step}")
    part = store.begin(place)
    entries = [store.write_hashed(part / name, write) for name, write in writers.items()]
    about = {"job": os.environ.get("BERTH_JOB_ID"), "world_size": 1, "strategy": "recipe"}
    store.publish(place, about, entries)
    return place.folder
