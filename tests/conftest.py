"""Fixtures and settings of all tests."""

import gc
import os
import shutil
from collections import Counter
from pathlib import Path

# Set before torch and the Hugging Face libraries read them, and inherited by the processes that
# tests start: one thread each is faster than many processes that share the cores, and repeatable.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

from captioning.runtime import signals
from tests.tiny_run import TINY_RUN

# The first backward pass starts a thread for each kind of device known by then, after which forked
# processes cannot differentiate. This one knows only the CPU.
torch.ones((), requires_grad=True).backward()

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config):
    """Let pytest-xdist distribute files in the order of the items, not by their tests' number."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Run the files with the most slow tests first."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish():
    """Exclude what imports have made from garbage collections, which trainers ask for often."""
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # libraries check it when Python ends


@pytest.fixture(autouse=True)
def seeded():
    """Start every test from the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def one_meteor():
    """Let the runs within this process share METEOR's Java, which takes seconds to start."""
    from captioning.metrics.meteor import shared_process

    with shared_process():
        yield


@pytest.fixture(autouse=True)
def no_stop_request():
    """Reset the stop request after each test."""
    yield
    signals._request = signals._launcher = None


@pytest.fixture(scope="session")
def repository():
    """Return the root folder of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder of sample annotations and photos; skip the test where there is none."""
    return _beside_repository("data")


@pytest.fixture(scope="session")
def golden():
    """Return the folder of recorded numbers of a tiny BLIP; skip the test where there is none."""
    return _beside_repository("golden/tiny")


def _beside_repository(name):
    folder = REPOSITORY.parent / "shared" / name
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: the sample files are not part of the repository")
    return folder


WORDS = """
a picture of the man woman dog cat red blue small large on in and with ball box ##s
"""
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """Return the path of a BERT vocabulary of a few words."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS.split()]) + "\n")
    return path


@pytest.fixture(scope="session")
def make_captioner(vocabulary):
    """Return a function that builds a tiny captioner, in evaluation mode, by the same settings."""
    from benchmarks.captioners import TINY
    from BLIP import build_captioner

    def make(**settings):
        med_config = {**TINY["med_config"], "initializer_range": 0.3}
        tiny = {**TINY, "tokenizer": str(vocabulary), "med_config": med_config}
        return build_captioner(**{**tiny, **settings}).eval()

    return make


@pytest.fixture(scope="session")
def itm_checkpoint(vocabulary, tmp_path_factory):
    """Return a file in the layout of BLIP's retrieval, of random weights, beside its vocabulary."""
    from benchmarks.captioners import TINY
    from BLIP.itm import BlipItm
    from BLIP.med import read_med_config
    from BLIP.tokenizer import CaptionTokenizer
    from BLIP.vit import ImageEncoder

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
    folder = tmp_path_factory.mktemp("itm")
    (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())
    config = {**TINY, "med_config": med_config}
    torch.save({"model": state, "config": config}, folder / "retrieval.pth")
    return folder / "retrieval.pth"


@pytest.fixture
def quick_compiler(monkeypatch):
    """Let torch.compile trace and run what it traced, without making machine code of it.

    Returns the backend, whose frame_count is the number of compilations.
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()  # what other tests have compiled counts towards a limit
    counter = CompileCounterWithBackend("aot_eager")
    compile_with = torch.compile

    def quick(call, **options):
        options.pop("mode", None)  # that of the usual backend
        return compile_with(call, **{"backend": counter, **options})

    monkeypatch.setattr("torch.compile", quick)
    return counter


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Return the folder of a small captioned data set."""
    from captioning.scenes.make import make_scenes

    folder = tmp_path_factory.mktemp("data") / "scenes"
    make_scenes(folder, splits={"train": 24, "val": 5, "test": 7})
    return folder


@pytest.fixture(scope="session")
def scenes_config(scenes, tmp_path_factory):
    """Return the path of a configuration of a run of seconds on the small data set."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(TINY_RUN.format(data=scenes) + "max_length: 16\n")
    return path


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Return the path of a configuration of 3 epochs of 8 steps, for tests to disturb the run."""
    from tests.soak.runs import write_config

    return write_config(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def finished(config):
    """Return a function that returns the folder of an undisturbed run with given settings."""
    from tests.soak.runs import kept_runs

    return kept_runs(config)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Return a headless Chromium; skip the test where there is none."""
    from benchmarks.browser import Browser

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed")
    # On a busy machine Chromium sometimes hangs at its start.
    try:
        started = Browser(program, tmp_path_factory.mktemp("profile"))
    except OSError:
        started = Browser(program, tmp_path_factory.mktemp("profile"))
    with started:
        yield started
