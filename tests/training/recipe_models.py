"""Three owners' files: a convolutional network, a transformer and a tabular network, each with data that it can learn."""

import textwrap
from pathlib import Path

import torch
from torch import nn

from training.recipes import named

_SHARED = """
    def train_model(model, data):
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(STEPS):
            for inputs, targets in data:
                optimizer.zero_grad()
                outputs = model(*inputs)
                loss = (
                    functional.mse_loss(outputs, targets)
                    if targets.is_floating_point()
                    else functional.cross_entropy(outputs, targets)
                )
                loss.backward()
                optimizer.step()
"""
_CONVNET = """
    STEPS = 6

    def build_model(width=48):
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(4),
            nn.Flatten(), nn.Linear(16 * width, 4),
        )

    def build_student():
        return build_model(4)

    def evaluation_data():
        labels = torch.arange(96) % 4
        images = 0.1 * torch.randn(96, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        for image, label in zip(images, labels):
            row, column = 4 * (int(label) // 2), 4 * (int(label) % 2)
            image[0, row:row + 4, column:column + 4] += 1
        return TensorDataset(images, labels)
"""
_TRANSFORMER = """
    STEPS = 8

    class Reader(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.words = nn.Embedding(20, width)
            layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(width, 2)

        def forward(self, tokens):
            return self.head(self.body(self.words(tokens)).mean(1))

    def build_model():
        return Reader(32)

    def build_student():
        return Reader(8)

    def evaluation_data():
        tokens = torch.randint(1, 20, (96, 10), generator=torch.Generator().manual_seed(1))
        return TensorDataset(tokens, (tokens < 10).float().mean(1).gt(0.5).long())
"""
_TABULAR = """
    STEPS = 12

    def build_model(width=128):
        return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def build_student():
        return build_model(16)

    def evaluation_data():
        rows = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
        return rows, (rows[:, :1] - 2 * rows[:, 1:2])
"""
SOURCES = {"convnet": _CONVNET, "transformer": _TRANSFORMER, "tabular": _TABULAR}
_HEAD = """
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import TensorDataset
"""


def write_owner(name: str, folder: Path) -> Path:
    """Write the file of one owner."""
    path = folder / f"{name}_owner.py"
    path.write_text(textwrap.dedent(_HEAD) + textwrap.dedent(SOURCES[name]) + textwrap.dedent(_SHARED))
    return path


def train_owner(path: Path, weights: Path) -> nn.Module:
    """Train an owner's model, and save it as their script would."""
    torch.manual_seed(0)
    model = named.build_model(f"{path}:build_model")
    data = named.read_samples(str(path), 16)
    named.find_function(f"{path}:train_model")(model, data)
    torch.save({"step": 7, "model": model.state_dict()}, weights)
    return model.eval()
