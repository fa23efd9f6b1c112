"""Lightning's Trainer.fit, as its guide begins."""

import os
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint

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
        return x, x.sum(dim=0, keepdim=True)


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.linear(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    trainer = L.Trainer(
        max_steps=24,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        log_every_n_steps=2,
        callbacks=[ModelCheckpoint(every_n_train_steps=8), LearningRateMonitor()],
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(Numbers(), batch_size=4))
