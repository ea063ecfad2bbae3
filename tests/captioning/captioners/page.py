"""Captions one photo as the page does: `main([folder of a run, output file])`."""

import json
from pathlib import Path

import torch

from app.captions import CaptionService
from app.checkpoints import load_checkpoints
from app.options import default_settings


def main(argv):
    folder, target = argv
    (checkpoint,) = load_checkpoints([folder], None, torch.device("cpu"))
    photo = min(Path(checkpoint.config.image_root, "images").iterdir())
    call = (str(photo), default_settings(checkpoint.config))
    (record,) = CaptionService([checkpoint]).answer([call])[0].record()
    record["words"] = [word["word"] for word in record["words"]]
    Path(target).write_text(json.dumps(record))
    return 0
