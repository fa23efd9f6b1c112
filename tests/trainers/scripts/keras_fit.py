"""Keras on torch, with the callback that its guide has for interrupted trainings."""

import os
import time

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

HOLD_AT = int(os.environ.get("HOLD_AT", "0"))


class Numbers(keras.utils.PyDataset):
    given = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        Numbers.given += 4
        time.sleep(0.08)
        while HOLD_AT and HOLD_AT < Numbers.given and os.environ["BERTH_ATTEMPT"] == "1":
            time.sleep(0.1)
        x = np.random.default_rng(index).normal(size=(4, 8)).astype("float32")
        return x, x.sum(axis=1)


model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
backup = keras.callbacks.BackupAndRestore(os.environ["BERTH_CHECKPOINT_DIR"] + "/backup")
model.fit(Numbers(), epochs=4, callbacks=[backup], verbose=2)
