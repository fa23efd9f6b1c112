"""A Hugging Face Trainer over a model and numbers of its own."""

import os
import time

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

HOLD_AT = int(os.environ.get("HOLD_AT", "0"))


class Numbers(torch.utils.data.Dataset):
    given = 0

    def __len__(self):
        return 256

    def __getitem__(self, index):
        Numbers.given += 1
        time.sleep(0.02)
        while HOLD_AT and HOLD_AT < Numbers.given and os.environ["BERTH_ATTEMPT"] == "1":
            time.sleep(0.1)
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum()}


class Line(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(8, 1)
        self.post_init()

    def forward(self, x, labels=None):
        predicted = self.linear(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}


arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    max_steps=24,
    logging_steps=2,
    save_steps=8,
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(model=Line(PretrainedConfig()), args=arguments, train_dataset=Numbers())
trainer.train()
