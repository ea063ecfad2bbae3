"""Captions one photo as the page does: `main([folder of a run, output file])`."""

import json
from pathlib import Path

import torch

from app.checkpoints import load_checkpoints
from app.options import page_defaults, read_options
from app.photos import Limits
from app.service import CaptionService


def main(argv):
    folder, target = argv
    (checkpoint,) = load_checkpoints([folder], None, torch.device("cpu"))
    photo = min(Path(checkpoint.config.image_root, "images").iterdir())
    options, service = (
        read_options(page_defaults(checkpoint)),
        CaptionService([checkpoint], Limits()),
    )
    record = service.caption_file(photo, photo.name, [checkpoint.label], options)[1][0].record()
    record["words"] = [word["word"] for word in record["words"]]
    Path(target).write_text(json.dumps({**record, "image": photo.name}))
    return 0
