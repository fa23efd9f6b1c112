"""Stable-Baselines3's PPO on its guide's task, with its callback for checkpoints."""

import os
import time

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback

HOLD_AT = int(os.environ.get("HOLD_AT", "0"))


class Hold(BaseCallback):
    def _on_step(self):
        time.sleep(0.004)
        while HOLD_AT and self.num_timesteps > HOLD_AT and os.environ["BERTH_ATTEMPT"] == "1":
            time.sleep(0.1)
        return True


model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, verbose=1, device="cpu")
# What Berth says to add stands in the next line.
# ADD
callbacks = CallbackList([CheckpointCallback(save_freq=128, save_path="saves"), Hold()])
model.learn(total_timesteps=768, callback=callbacks, log_interval=1, reset_num_timesteps=False)
