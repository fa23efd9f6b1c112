"""Exports a model as a torch program and as ONNX, and checks both against the model on the same inputs."""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from training.recipes.measure import answer
from training.recipes.named import RecipeError

TOLERANCE = 1e-4  # of absolute and relative difference
PROGRAM, ONNX = "model.pt2", "model.onnx"
LARGEST_OUTSIDE_BYTES = 2**31  # of one ONNX file
_OPERATORS = re.compile(r"(?:aten|prim|prims|torchvision|torch_\w+)(?:::|\.)[\w.]+")

Writer = Callable[[BinaryIO], object]


def export(
    model: nn.Module, inputs: Sequence[Tensor], *, onnx: bool = True
) -> tuple[dict[str, Writer], dict[str, float | str]]:
    """Export a model with a batch of any size; returns the writers of its files, and what was found.

    Raises:
        RecipeError: the model cannot be traced, ONNX does not know an operator, or the results differ.
    """
    model = model.cpu().eval()
    inputs = tuple(each.cpu() for each in inputs)
    program = traced(model, inputs)
    with torch.no_grad():
        wanted = answer(model, inputs)
        of_program = difference(wanted, answer(program.module(), inputs), "The exported program")
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    files: dict[str, Writer] = {PROGRAM: writer(buffer.getvalue())}
    facts: dict[str, float | str] = {
        "export_difference": of_program,
        "program_bytes": len(buffer.getvalue()),
        "operators": len({str(node.target) for node in program.graph.nodes if node.op == "call_function"}),
    }
    if onnx:
        data = to_onnx(program, inputs)
        facts["onnx_difference"] = difference(wanted, run_onnx(data, inputs), "The ONNX model")
        facts["onnx_bytes"] = len(data)
        files[ONNX] = writer(data)
    return files, facts


def writer(data: bytes) -> Writer:
    return lambda file: file.write(data)


def traced(
    model: nn.Module, inputs: tuple[Tensor, ...], *, any_batch: bool = True
) -> torch.export.ExportedProgram:
    """The program for any batch size, else for the size of the inputs.

    Raises:
        RecipeError: the model cannot be traced.
    """
    batch = torch.export.Dim("batch", min=1)
    shapes: Sequence[tuple[dict[int, Any], ...] | None] = (tuple({0: batch} for _ in inputs), None)
    problem: Exception | None = None
    for shape in shapes if any_batch else [None]:
        try:
            return torch.export.export(model, inputs, dynamic_shapes=shape)
        except Exception as error:  # noqa: BLE001 -- tracing other people's models raises errors of many types
            problem = error  # a model may fix its batch
    raise RecipeError(f"torch.export cannot trace the model: {first_line(problem)}") from problem


def to_onnx(program: torch.export.ExportedProgram, inputs: tuple[Tensor, ...]) -> bytes:
    """The program as one ONNX file.

    Raises:
        RecipeError: the packages are missing, an operator has no ONNX form, or the file is too large.
    """
    try:
        import onnx  # noqa: F401  # only the job's environment has it
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            f"ONNX needs packages that the job has not: add onnx and onnxscript ({error})."
        ) from error
    try:
        made: Any = torch.onnx.export(program, inputs, dynamo=True, verbose=False)
        data: bytes = made.model_proto.SerializeToString()
    except Exception as error:
        raise RecipeError(say_unknown(error)) from error
    if len(data) >= LARGEST_OUTSIDE_BYTES:
        raise RecipeError("The model is larger than 2 GiB, which is the most that one ONNX file holds.")
    return data


def say_unknown(error: BaseException) -> str:
    """Name the operator that ONNX does not know, from an error and its causes."""
    texts, each = [], error
    while each is not None:
        texts.append(str(each))
        each = each.__cause__ or each.__context__  # type: ignore[assignment]
    for text in texts:
        at = text.find("No ONNX function found for")
        if at >= 0 or "No decompositions registered" in text or "Unsupported" in text:
            named = _OPERATORS.search(text, max(at, 0))
            operator = named[0].rstrip(".") if named else _between(text[max(at, 0) :])
            return f"ONNX does not know the operator {operator}; write the layer with others, or export without ONNX."
    return f"ONNX cannot express the model: {first_line(error)}"


def _between(text: str) -> str:
    found = re.search(r"[<'\"]([^>'\"]+)[>'\"]", text)
    return found[1] if found else text[:80]


def runtime_of_onnx() -> Any:
    """ONNX Runtime's package, which only the job's environment has.

    Raises:
        RecipeError: it has not.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise RecipeError(
            f"The check of an ONNX model needs a package: add onnxruntime ({error})."
        ) from error
    return onnxruntime


def run_onnx(data: bytes | str | Path, inputs: Sequence[Tensor]) -> Tensor:
    """The first output of an ONNX model, by ONNX Runtime on the CPU."""
    session = runtime_of_onnx().InferenceSession(
        data if isinstance(data, bytes) else str(data), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    found = session.run(None, {name: each.numpy() for name, each in zip(names, inputs, strict=True)})
    return torch.from_numpy(found[0])


def difference(wanted: Tensor, found: Tensor, what: str) -> float:
    """The largest difference of two results.

    Raises:
        RecipeError: it is beyond the tolerance.
    """
    if wanted.shape != found.shape:
        raise RecipeError(
            f"{what} answers with shape {list(found.shape)}, the model with {list(wanted.shape)}."
        )
    largest = float((wanted - found).abs().max())
    if not torch.allclose(wanted, found, rtol=TOLERANCE, atol=TOLERANCE):
        raise RecipeError(
            f"{what} differs from the model by {largest:.3g}; {TOLERANCE:g} is the most that is accepted."
        )
    return largest


def first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
