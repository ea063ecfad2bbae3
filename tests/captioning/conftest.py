"""CLIP, SigLIP 2 and GPT-2 of a few thousand made-up weights, as transformers saves them."""

import gc
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from captioning.files import store_requests
from captioning.metrics import meteor
from tests.captioning import object_store

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
CLIP_MERGES = ["t h", "th e</w>", "a n", "an d</w>", "c a", "ca t</w>", "d o", "do g</w>"]
CLIP_MERGES.append("' s</w>")
GPT2_MERGES = ["t h", "th e", "Ġ t", "Ġt h", "Ġth e", "Ġ a", "a n", "an d", "Ġ c", "Ġc a", "Ġca t"]


def save_tokens(folder, words, merges, *marks):
    """Write vocab.json and merges.txt, the marks last, as CLIP's and GPT-2's are."""
    tokens = [*words, *("".join(merge.split()) for merge in merges if merge), *marks]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    last = len(tokens) - 1
    return {"vocab_size": len(tokens), "bos_token_id": last + 1 - len(marks), "eos_token_id": last}


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def make_up(model, scale):
    """Fill the weights from a seed and their names' order, alike in every version."""
    random = torch.Generator().manual_seed(7)
    for _, weight in sorted(model.named_parameters()):
        with torch.no_grad():
            values = torch.randn(weight.shape, generator=random) * scale
            weight.copy_(values + (1.0 if weight.ndim == 1 else 0.0))


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory):
    """Return the folder of a CLIP of 24 tokens and images of 24 by 24."""
    folder, marks = tmp_path_factory.mktemp("clip"), ("<|startoftext|>", "<|endoftext|>")
    words = [*LETTERS, *(letter + "</w>" for letter in LETTERS)]
    text = save_tokens(folder, words, CLIP_MERGES, *marks)
    files = (str(folder / name) for name in ("vocab.json", "merges.txt"))
    tokenizer = Tokenizer(models.BPE.from_file(*files, end_of_word_suffix="</w>"))
    tokenizer.add_special_tokens([*marks])
    tokenizer.normalizer = normalizers.Lowercase()
    by_byte = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(by_byte)
    special = [(mark, tokenizer.token_to_id(mark)) for mark in marks]
    ends = processors.TemplateProcessing(single=" $A ".join(marks), special_tokens=special)
    tokenizer.post_processor = ends
    tokenizer.save(str(folder / "tokenizer.json"))  # as the released CLIPs have it
    tower = {"intermediate_size": 64, "num_attention_heads": 1, "hidden_size": 64}
    text.update(tower, max_position_embeddings=24, num_hidden_layers=2)
    vision = {**tower, "image_size": 24, "patch_size": 8, "num_hidden_layers": 3}
    towers = {"text_config_dict": text, "vision_config_dict": vision}
    model = transformers.CLIPModel(transformers.CLIPConfig(**towers, projection_dim=16))
    make_up(model, 0.25)
    model.save_pretrained(str(folder))
    return folder


def save_siglip(folder):
    """Write a SigLIP 2 of 12 tokens and images of 24 by 24 into the folder, and return it.

    Skip the test where transformers has no SigLIP.
    """
    if not hasattr(transformers, "SiglipModel"):
        pytest.skip(f"transformers {transformers.__version__} has no SigLIP")
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "cat", "dog", "the", "and"]
    tower = {"intermediate_size": 64, "num_attention_heads": 4, "hidden_size": 32}
    tower["num_hidden_layers"] = 2
    text = {**tower, "vocab_size": len(words), "max_position_embeddings": 12}
    vision = {**tower, "image_size": 24, "patch_size": 8}
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    model = transformers.SiglipModel(config)
    make_up(model, 0.25)
    model.save_pretrained(str(folder))
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.post_processor = ends
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(str(folder))
    newest = getattr(transformers, "SiglipImageProcessorPil", None)
    processor = newest or transformers.SiglipImageProcessor
    processor(size={"height": 24, "width": 24}, resample=2).save_pretrained(str(folder))
    return folder


def unit(features):
    features = getattr(features, "pooler_output", features)
    return torch.nn.functional.normalize(features, dim=-1).detach().numpy().squeeze()


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    """Return the folder of a GPT-2 of 48 tokens."""
    folder = tmp_path_factory.mktemp("gpt2")
    words = save_tokens(folder, LETTERS, [*GPT2_MERGES, ""], "<|endoftext|>")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=48, **words)
    model = transformers.GPT2LMHeadModel(config)
    make_up(model, 0.15)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_meteor():
    """Let the runs within this process share METEOR's Java, which takes seconds to start."""
    with meteor.shared_process():
        yield


@pytest.fixture
def own_meteor(monkeypatch):
    """Let each score start its own Java, that which is on PATH then."""
    monkeypatch.delenv(meteor.ADDRESS_VARIABLE, raising=False)


@pytest.fixture
def no_java(monkeypatch, tmp_path, own_meteor):
    """Leave no `java` on PATH: metrics that need it are tested in tests/captioning/metrics."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def undrawn(monkeypatch):
    """Leave only the descriptions of figures: to draw one takes a third of a second."""
    savefig = "matplotlib.figure.Figure.savefig"
    monkeypatch.setattr(savefig, lambda self, file, **_: file.write("<svg ></svg>"))


@pytest.fixture
def photos(tmp_path):
    """Return the paths of four images of different sizes and content."""
    paths = []
    for number, size in enumerate([(40, 30), (24, 24), (35, 60), (50, 50)]):
        random = np.random.default_rng(number)
        coarse = random.integers(0, 255, (4, 4, 3), dtype=np.uint8)
        paths.append(tmp_path / f"photo_{number:03d}.png")
        Image.fromarray(coarse).resize(size, Image.BICUBIC).save(paths[-1])
    return paths


@pytest.fixture(scope="session")
def s3_server():
    """Return a server of S3 for all tests; skip the test where its libraries are missing."""
    pytest.importorskip("s3fs", reason="s3fs reads s3://")
    pytest.importorskip("moto", reason="moto serves s3://")
    pytest.importorskip("flask_cors", reason="moto's server is made of it")
    server = object_store.FaultyStore()
    yield server
    server.close()


@pytest.fixture
def s3(s3_server, tmp_path, monkeypatch):
    """Return the server, with `files`, which reads and writes it, and an empty bucket `bucket`.

    What is read of it is kept in the test's own folder `cache`. Processes that a test starts have
    the same variables, but pause before retries, unless their hook is `object_store.quick_retries`.
    """
    import s3fs

    for name, value in {**s3_server.variables, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store_requests, "PAUSE_S", object_store.PAUSE_S)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    if s3fs.S3FileSystem(use_listings_cache=False) is not s3_server.files:
        s3fs.S3FileSystem.clear_instance_cache()  # perhaps one without these variables
        s3_server.files = s3fs.S3FileSystem(use_listings_cache=False)
    s3_server.faults.clear()
    s3_server.refuses = lambda method, path: False
    if s3_server.files.exists("bucket"):
        s3_server.files.rm("bucket", recursive=True)
    s3_server.files.mkdir("bucket")
    s3_server.requests.clear()
    return s3_server


@pytest.fixture
def no_child_stays():
    """Return a check that of the processes begun since the test's start none still runs."""
    gc.collect()
    before = set(multiprocessing.active_children())

    def check():
        assert set(multiprocessing.active_children()) <= before

    return check
