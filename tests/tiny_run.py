"""The configuration of a run of seconds; what differs from test to test is added to it."""

import json
from pathlib import Path

import torch

# `data` is a folder of scenes, as captioning.scenes makes it.
TINY_RUN = """
dataset: custom
image_root: {data}
ann_root: {data}
train_file: scenes_train.json
val_file: scenes_val.json
test_file: scenes_test.json
tokenizer: {data}/vocab.txt
objective: {{mle: 0.5, smile: 0.5}}
vit: {{embed_dim: 32, depth: 1, num_heads: 4}}
med_config: {{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 4, intermediate_size: 32}}
image_size: 32
batch_size: 8
captions_per_image: 2
init_lr: 1e-3
max_epoch: 3
num_workers: 0
"""

# Overrides for a small classic captioner; each test adds its `model`.
CLASSIC = (
    *("encoder=shufflenet_v2_x0_5", "encoder_weights=none", "encoder_lr=1e-3"),
    *("embed_dim=16", "hidden_dim=16", "attention_dim=8"),
)


def leave_an_epoch(config, epoch=0, without=None):
    """Write the checkpoint of a run of one process that has learned nothing, after that epoch.

    without: a key that its configuration lacks.
    """
    folder = Path(config.output_dir)
    folder.mkdir(exist_ok=True)
    batches = {"batch_size": config.batch_size, "processes": 1, "accumulation_steps": 1}
    kept = {key: value for key, value in config.model_dump().items() if key != without}
    content = {"model": {}, "optimizer": {}, "epoch": epoch, "batches": batches, "config": kept}
    torch.save(content, folder / f"checkpoint_{epoch:02d}.pth")


def log_of(folder, event):
    """Return the lines of an event in a run's log."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == event]
