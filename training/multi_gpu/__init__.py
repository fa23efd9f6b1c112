"""The names of this system's first design, on the same loop: old programs only change their import.

New programs should use ``Trainer``.  torchrun's environment takes precedence over ``rank`` and ``world_size``.
"""

from training.multi_gpu.performance import MetricsCollector, PerformanceMonitor
from training.multi_gpu.settings import MultiGPUConfig, TrainingMode
from training.multi_gpu.trainers import (
    DataParallelTrainer,
    DistributedDataParallelTrainer,
    FaultToleranceManager,
    MultiGPUTrainer,
    MultiGPUTrainingManager,
)

__all__ = [
    "DataParallelTrainer",
    "DistributedDataParallelTrainer",
    "FaultToleranceManager",
    "MetricsCollector",
    "MultiGPUConfig",
    "MultiGPUTrainer",
    "MultiGPUTrainingManager",
    "PerformanceMonitor",
    "TrainingMode",
]
