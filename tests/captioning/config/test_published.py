"""The shipped configurations against what the original's files and code were read to hold."""

import re

import pytest
from ruamel.yaml import YAML

from captioning.config import load_config

MODELS = "https://storage.googleapis.com/sfr-vision-language-research/BLIP/models/"

# github.com/yuezih/SMILE, BLIP/configs/caption_coco.yaml at 7bab3e8. BLIP's own file of that name
# has max_length 20 and min_length 5, and is otherwise the same.
SMILES = {
    "image_root": "/export/share/datasets/vision/coco/images/",
    "ann_root": "annotation",
    "coco_gt_root": "annotation/coco_gt",
    "pretrained": f"{MODELS}model_base_caption_capfilt_large.pth",
    "vit": "base",
    "vit_grad_ckpt": False,
    "vit_ckpt_layer": 0,
    "batch_size": 32,
    "init_lr": 1e-5,
    "image_size": 384,
    "max_length": 75,
    "min_length": 1,
    "num_beams": 3,
    "prompt": "a picture of ",
    "weight_decay": 0.05,
    "min_lr": 0,
    "max_epoch": 5,
}

# The same file's values for ViT-L, which are comments there.
LARGE = {
    "vit": "large",
    "vit_grad_ckpt": True,
    "vit_ckpt_layer": 5,
    "batch_size": 16,
    "init_lr": 2e-6,
}

# What the original has in its code: train_caption.py, models/blip.py, data/ and transform/.
IN_CODE = {
    "label_smoothing": 0.1,  # of MLE
    "first_token_mle": True,  # with SMILE
    "random_subset_size": 10,
    "optimizer": "adamw",
    "lr_schedule": "cosine",
    "warmup_steps": 0,
    "accumulation_steps": 1,
    "clip_grad_norm": None,
    "clip_grad_value": None,
    "captions_per_image": 1,
    "max_words": 30,
    "max_tokens": 40,
    "augmentation": "blip",
    "tokenizer": "bert-base-uncased",
    "seed": 42,
    "sample": False,
    "length_penalty": 1.0,
    "repetition_penalty": 1.0,
    "precision": "fp32",
    "first_token_shift": False,
    "dataset": "coco",
}

PATHS = {"image_root", "ann_root", "coco_gt_root"}
OURS = {"objective", "precision", "keep_checkpoints", "dataset"}  # keys that the original has not
OTHERWISE = {  # what is not the original's, and the words of the comment that says so
    "caption_coco": {},
    "caption_coco_large": {"pretrained": "names no weights for it"},
    "caption_flickr30k": {
        "pretrained": "BLIP as it was pre-trained",
        "dataset": "The original has\n# no such configuration",
    },
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_shipped_configuration_is_the_originals(repository, name):
    path = repository / "configs" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    config = load_config(path)
    original = {**SMILES, **(LARGE if name.endswith("large") else {}), **IN_CODE}
    different = {
        key: value
        for key, value in original.items()
        if key not in PATHS and getattr(config, key) != value
    }
    assert different.keys() == OTHERWISE[name].keys(), different
    for comment in OTHERWISE[name].values():
        assert comment in text
    assert set(YAML(typ="safe").load(text)) - OURS <= set(SMILES)


@pytest.mark.parametrize("name", OTHERWISE)
def test_both_starts_can_be_had(repository, name):
    """One is set; the other stands beside it, as a line to swap or by its name."""
    text = (repository / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    files = set(re.findall(r"model_\w+\.pth", text))
    tuned = {"model_base_caption_capfilt_large.pth", "model_base_capfilt_large.pth"}
    assert files == ({"model_large_caption.pth", "model_large.pth"} if "large" in name else tuned)
