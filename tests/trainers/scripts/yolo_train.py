"""Ultralytics' YOLO, built from its own file, on a few pictures that are made here."""

import pathlib

import numpy as np
from PIL import Image
from ultralytics import YOLO

for part in ("train", "val"):
    pictures, labels = pathlib.Path("shapes/images", part), pathlib.Path("shapes/labels", part)
    pictures.mkdir(parents=True, exist_ok=True)
    labels.mkdir(parents=True, exist_ok=True)
    for number in range(8):
        picture = np.zeros((64, 64, 3), dtype=np.uint8)
        picture[16:48, 16:48] = 200 + number
        Image.fromarray(picture).save(pictures / f"{number}.png")
        (labels / f"{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
pathlib.Path("shapes.yaml").write_text(
    f"path: {pathlib.Path('shapes').resolve()}\ntrain: images/train\nval: images/val\nnames:\n  0: square\n"
)
model = YOLO("yolo11n.yaml")
model.train(data="shapes.yaml", epochs=12, imgsz=64, batch=4, device="cpu", workers=0, plots=False, amp=False)
