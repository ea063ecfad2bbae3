"""Tiny captioners, data sets, configurations, checkpoints and runs."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import torch

from baselines.configured import Keys
from benchmarks.captioners import TINY
from BLIP import build_captioner
from BLIP.itm import BlipItm
from BLIP.sizes import read_med_config
from BLIP.tokenizer import CaptionTokenizer
from BLIP.vit import ImageEncoder
from tests.programs import run_program

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = """
a picture of the man woman dog cat red blue small large on in and with ball box ##s
"""

# A run of seconds; what differs from test to test is added. `data` is a folder of scenes, as
# captioning.scenes makes it.
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
    *("encoder=timm/test_resnet", "encoder_weights=none", "encoder_lr=1e-3"),
    *("embed_dim=16", "hidden_dim=16", "attention_dim=8"),
)
CAPTIONERS = {"blip": (), "lstm": ("model=lstm", *CLASSIC), "sat": ("model=sat", *CLASSIC)}


def classic_config(model="lstm", **settings):
    """Return what the constructors of `baselines` read of a configuration, with tiny sizes."""
    general = {"model": model, "prompt": "", "max_tokens": 40, "image_size": 32}
    sizes = {"embed_dim": 8, "hidden_dim": 8, "attention_dim": 8, "dropout": 0.0}
    encoder = {"encoder": "timm/test_resnet", "encoder_lr": 1e-3}
    keys = {**vars(Keys.model_construct()), **general, **sizes, **encoder}
    assert settings.keys() <= keys.keys()
    return SimpleNamespace(**{**keys, **settings})


def write_vocabulary(path: Path) -> Path:
    """Write a BERT vocabulary of a few words."""
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS.split()]) + "\n")
    return path


def make_captioner(vocabulary: Path, **settings):
    """Build a tiny BLIP, in evaluation mode. The same settings give the same shapes."""
    med_config = {**TINY["med_config"], "initializer_range": 0.3}
    tiny = {**TINY, "tokenizer": str(vocabulary), "med_config": med_config}
    return build_captioner(**{**tiny, **settings}).eval()


def save_itm(folder: Path, vocabulary: Path) -> Path:
    """Write a checkpoint in the layout of BLIP's retrieval, of random weights. Return its path."""
    med_config = {**TINY["med_config"], "max_position_embeddings": 40}
    encoder, words = ImageEncoder(TINY["vit"], 48), CaptionTokenizer(str(vocabulary))
    model = BlipItm(encoder, read_med_config(med_config), words, width=16)
    random = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=random)
        is_norm = "norm" in name.lower() and name.endswith("weight")
        weight.data.copy_(values * (0.3 if weight.ndim > 1 else 0.1) + is_norm)
    state = dict(model.state_dict())
    for key in [*state]:
        part, _, rest = key.partition(".")
        if part != "itm_head":
            state[f"{part}_m.{rest}"] = state[key] + 1
    state.update(image_queue=torch.randn(16, 8), ptr_queue=torch.zeros(1), temp=torch.tensor(0.07))
    config = {**TINY, "med_config": med_config}
    content = {"model": state, "config": config, "files": {"tokenizer": words.files}}
    torch.save(content, folder / "retrieval.pth")
    return folder / "retrieval.pth"


def train_run(config: Path, folder: Path, captioner: str) -> None:
    """Train a captioner of CAPTIONERS for an epoch in a folder, then score its test split."""
    given = ["--config", config, "--output_dir", folder, "max_epoch=1", "metrics=[length]"]
    for flags in ((), ("--evaluate", "--eval_split", "test")):
        outcome = run_program("captioning.train", *given, *CAPTIONERS[captioner], *flags)
        assert outcome.code == 0, outcome.err


def copy_run(source: Path, folder: Path) -> Path:
    """Copy a run's folder. Weights, which programs replace and never change, are hard links."""

    def copy(path, target):
        (os.link if path.endswith(".pth") else shutil.copy2)(path, target)

    return Path(shutil.copytree(source, folder, copy_function=copy))


def leave_an_epoch(config, epoch=0, without=None):
    """Write the checkpoint of a run of one process on 24 items, which has learned nothing.

    without: a key that its configuration lacks.
    """
    folder = Path(config.output_dir)
    folder.mkdir(exist_ok=True)
    batches = {"batch_size": config.batch_size, "processes": 1, "accumulation_steps": 1}
    kept = {key: value for key, value in config.model_dump().items() if key != without}
    content = {"model": {}, "optimizer": {}, "epoch": epoch, "batches": batches, "items": 24}
    torch.save({**content, "config": kept}, folder / f"checkpoint_{epoch:02d}.pth")


def log_of(folder, event):
    """Return the lines of an event in a run's log; ValueError for one in its midst that is torn."""
    path = folder / "log.jsonl"
    text = path.read_text() if path.exists() else ""
    whole, _, _ = text.rpartition("\n")  # what a kill cut off is mended on resume
    lines = map(json.loads, whole.splitlines())
    return [line for line in lines if line["event"] == event]
