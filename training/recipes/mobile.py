"""Exports a model for phones: an ExecuTorch file where executorch is installed, else ONNX for ONNX Runtime on phones."""

import importlib.metadata
import importlib.util
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from training.recipes import export
from training.recipes.measure import answer
from training.recipes.named import RecipeError

PTE, ONNX = "model.pte", "model.mobile.onnx"
_NAMED = re.compile(r"\baten(?:\.|::)[\w.]+")
# The operators of the reduced builds of ONNX Runtime for Android and iOS, in onnxruntime's own file
# tools/ci_build/github/android/mobile_package.required_operators.config.
_NAMES = """
    Abs Add And ArgMax ArgMin AveragePool Cast Ceil Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos CumSum
    DepthToSpace DequantizeLinear Div DynamicQuantizeLinear Elu Equal Erf Exp Expand Flatten Floor Gather GatherND Gemm
    GlobalAveragePool Greater GreaterOrEqual Identity If InstanceNormalization LRN LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax Loop MatMul MatMulInteger Max MaxPool Mean Min Mul Neg NonMaxSuppression NonZero Not Or
    PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum Relu Reshape Resize ReverseSequence Round Scan ScatterND Shape Sigmoid Sin Size Slice Softmax SpaceToDepth
    Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Tile TopK Transpose Unique Unsqueeze Where
"""
_NAMES_OF_MICROSOFT = """
    BiasGelu DynamicQuantizeMatMul FusedConv FusedGemm FusedMatMul Gelu MatMulIntegerToFloat NhwcMaxPool QLinearAdd
    QLinearAveragePool QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearSigmoid
    SkipLayerNormalization
"""
OPERATORS: Final = frozenset(_NAMES.split())
OPERATORS_OF_MICROSOFT: Final = frozenset(_NAMES_OF_MICROSOFT.split())
# Whole numbers of 32 and 64 bits and truth values serve shapes and indices.
TYPES: Final = frozenset({"FLOAT", "INT8", "UINT8", "INT32", "INT64", "BOOL"})
Facts = dict[str, float | str]


class NotLowered(Exception):
    """ExecuTorch does not know these operators of the model, or says what else stands in the way."""


def export_for_phones(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[dict[str, export.Writer], Facts]:
    """Export a model that answers one sample at a time, and check it on the first of the inputs.

    Returns the writer of its file, and what was found: format, size, difference, operators that the target has not.

    Raises:
        RecipeError: the model cannot be traced, or the file answers otherwise than the model.
    """
    model = model.cpu().eval()
    first = tuple(each[:1].cpu() for each in inputs)
    with torch.no_grad():
        wanted = answer(model, first)
    program = export.traced(model, first, any_batch=False)
    facts: Facts = {}
    if importlib.util.find_spec("executorch") is not None:
        try:
            data = to_executorch(program)
        except NotLowered as error:
            facts["ExecuTorch does not know"] = str(error)
        else:
            facts["phone_format"] = f"ExecuTorch {importlib.metadata.version('executorch')}"
            facts["phone_difference"] = export.difference(
                wanted, run_executorch(data, first), "The .pte file"
            )
            facts["phone_bytes"] = len(data)
            return {PTE: export.writer(data)}, facts
    data = optimized(export.to_onnx(program, first))
    facts["phone_format"] = "ONNX for ONNX Runtime on phones"
    facts["phone_difference"] = export.difference(
        wanted, export.run_onnx(data, first), "The ONNX file for phones"
    )
    facts["phone_bytes"] = len(data)
    return {ONNX: export.writer(data)}, facts | check(data)


def to_executorch(program: torch.export.ExportedProgram) -> bytes:
    """The program as an ExecuTorch file, with what it can do in XNNPACK, the library for ARM and x86 processors.

    Raises:
        NotLowered: with the operators that ExecuTorch has no kernel for.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    try:
        lowered: Any = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        return bytes(lowered.to_executorch().buffer)
    except Exception as error:
        raise NotLowered(operators_in(error)) from error


def operators_in(error: BaseException) -> str:
    """The operators that an error of ExecuTorch names, else its first line."""
    found = dict.fromkeys(each.rstrip(".") for each in _NAMED.findall(str(error)))
    return ", ".join(found) or export.first_line(error)


def run_executorch(data: bytes, inputs: Sequence[Tensor]) -> Tensor:
    """The first output of an ExecuTorch file, by its runtime on this machine.

    Raises:
        RecipeError: the runtime cannot load or run it.
    """
    from executorch.runtime import Runtime

    try:
        method = Runtime.get().load_program(data).load_method("forward")
        found: Any = method.execute(list(inputs))[0]
    except Exception as error:
        raise RecipeError(f"The .pte file does not run: {export.first_line(error)}") from error
    return torch.as_tensor(found)


def optimized(data: bytes) -> bytes:
    """The ONNX file as ONNX Runtime simplifies it for every processor: constants folded, normalizations fused."""
    onnxruntime = export.runtime_of_onnx()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ONNX
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return path.read_bytes()


def check(data: bytes) -> Facts:
    """Name the operators and types of an ONNX file that ONNX Runtime's reduced builds for phones have not."""
    import onnx

    graph = onnx.load_from_string(data).graph
    types = onnx.TensorProto.DataType
    used = [each.data_type for each in graph.initializer]
    used += [each.type.tensor_type.elem_type for each in (*graph.input, *graph.output, *graph.value_info)]
    return unknown(
        ((node.domain, node.op_type) for node in graph.node), (types.Name(each) for each in used if each)
    )


def unknown(operators: Iterable[tuple[str, str]], types: Iterable[str]) -> Facts:
    """What phones do not know among operators, each with its domain, and types."""
    facts: Facts = {}
    strange = sorted({name for domain, name in operators if name not in _known(domain)})
    if strange:
        facts["operators that phones do not know"] = ", ".join(strange)
    if wrong := sorted(set(types) - TYPES):
        facts["types that phones do not know"] = ", ".join(wrong).lower()
    return facts


def _known(domain: str) -> frozenset[str]:
    return {"": OPERATORS, "ai.onnx": OPERATORS, "com.microsoft": OPERATORS_OF_MICROSOFT}.get(
        domain, frozenset()
    )
