"""Explanations of training errors: what happened and what to do.  Imports no torch."""

import re
from collections.abc import Iterator
from pathlib import Path

_NEXT = "Berth has no explanation for this error; the last lines of the traceback show where it happened."

# The first match counts, so special cases stand before general ones.
_EXPLANATIONS: tuple[tuple[str, str], ...] = (
    (
        r"cuda out of memory|outofmemoryerror|hip out of memory",
        "The GPU's memory is full. Take a smaller batch_size with more gradient_accumulation_steps (the losses "
        "stay the same), or batch_size='auto'; activation_checkpointing='selective', cpu_offload='optimizer' or "
        "strategy='fsdp' need less memory too.",
    ),
    (
        r"can't allocate memory|^memoryerror|unable to allocate|cannot allocate memory",
        "The main memory is full. Take fewer num_workers, cache less of the dataset in memory, or take a smaller "
        "batch_size.",
    ),
    (
        r"dataloader worker .*(killed by signal|exited unexpectedly)",
        "A process that loads data died: it was out of memory or crashed in the dataset's code. Try num_workers=0 "
        "to see its own error; if /dev/shm is small, fewer workers need less of it.",
    ),
    (
        r"no space left on device|errno 28|disk quota exceeded",
        "The disk is full. Delete files, keep fewer checkpoints (keep_last), or write to another disk.",
    ),
    (
        r"watchdog caught collective operation timeout|timed out waiting|"
        r"wait timeout after|collective.*timeout|timeout.*(allreduce|allgather|broadcast)",
        "A rank timed out waiting for the others: one of them is slow, stuck, or has ended. Look at the logs of "
        "the other ranks; all must call the same collectives in the same order, even with unequal data.",
    ),
    (
        r"connection (closed|reset) by peer|broken pipe|peer closed|connectionreseterror",
        "Another rank ended while this one waited for it. Its log shows why; this error is only a consequence.",
    ),
    (
        r"address already in use|eaddrinuse",
        "The rendezvous port is used by another program. Start with torchrun --standalone, which chooses a free "
        "port, or set another --master-port.",
    ),
    (
        r"device-side assert triggered|index out of (range|bounds)|target .* is out of bounds",
        "An index is out of range; often a label is not below the number of classes, or a token not below the "
        "vocabulary size. On the CPU, or with CUDA_LAUNCH_BLOCKING=1, the traceback names the exact line.",
    ),
    (
        r"error\(s\) in loading state_dict|missing key\(s\) in state_dict|another model",
        "The checkpoint was made with another model. Resume with the model of that run, or start from scratch "
        "with resume=False.",
    ),
    (
        r"mat1 and mat2 shapes cannot be multiplied|size mismatch|shapes? .*(mismatch|not match|cannot be "
        r"multiplied)|the size of tensor a .* must match|expected input.*to have \d+ channels",
        "Two tensors have incompatible shapes; the message shows both. Compare the layer's sizes with "
        "the shape of one sample of the dataset.",
    ),
    (
        r"expected all tensors to be on the same device",
        "A tensor lies on the CPU and another on a GPU. Make new tensors with device=inputs.device, and keep "
        "constants of the model in buffers (register_buffer), which move with it.",
    ),
    (
        r"expected scalar type|found dtype|must have the same dtype|should be the same type",
        "Two tensors have different number types. Convert labels to long for cross-entropy, inputs to float; under "
        "precision='bf16' leave the conversion to autocast.",
    ),
    (
        r"expected to have finished reduction|parameters that were not used in producing",
        "Some parameters took no part in this step's loss, so the ranks wait for their gradients. Set "
        "find_unused_parameters=True, or remove what the model does not use.",
    ),
    (
        r"modified by an inplace operation|trying to backward through the graph a second time",
        "The graph of this step was changed or used before backward. Avoid in-place operations (x += y) on tensors "
        "that a gradient needs, and detach() tensors that carry over from step to step.",
    ),
    (
        r"nan or infinity|not finite|returned nan values",
        "A number is not finite. Take a lower learning_rate, max_grad_norm=1.0, or precision='bf16' instead of "
        "'fp16'; check the dataset for NaN.",
    ),
    (
        r"no cuda gpus are available|torch not compiled with cuda|invalid device ordinal|found no nvidia driver",
        "The requested GPU does not exist. Start no more ranks than there are visible GPUs "
        "(CUDA_VISIBLE_DEVICES), and install a torch build with CUDA.",
    ),
    (
        r"nccl.*(unhandled|system error|internal error)|nccl error",
        "The GPUs cannot communicate. NCCL_DEBUG=WARN shows why; in a container more shared memory "
        "(--shm-size) often helps.",
    ),
    (
        r"can't pickle|cannot pickle|pickling",
        "Processes that load data need a dataset that can be pickled: define classes and functions at the top of a "
        "file, not as lambdas, or use num_workers=0.",
    ),
    (
        r"too many open files",
        "This process has opened too many files. Close them in the dataset, or raise the limit (ulimit -n).",
    ),
)


def explain(error: BaseException) -> str:
    """Explain an error of a training in a sentence or two: what happened, and what to do.

    Also looks at the causes of the error.  An unknown error is returned as text.
    """
    for cause in _chain(error):
        text = f"{type(cause).__name__}: {cause}"
        if isinstance(cause, ModuleNotFoundError):
            return _explain_missing(cause)
        if isinstance(cause, FileNotFoundError) and cause.filename is not None:
            return f"{cause.filename} does not exist. Relative paths start in {Path.cwd()}; use a full path."
        for pattern, sentence in _EXPLANATIONS:
            if re.search(pattern, text, re.IGNORECASE):
                return sentence
    message = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {message or 'no message'}. {_NEXT}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, the outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _explain_missing(error: ModuleNotFoundError) -> str:
    name = (error.name or "a module").partition(".")[0]
    package = {"cv2": "opencv-python", "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}.get(
        name, name
    )
    return (
        f"The module {name} is not installed here. Install it for this Python (python -m pip install {package}), or "
        "put its file beside the script."
    )
