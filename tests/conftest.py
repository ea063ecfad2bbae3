"""What all tests share: settings of the process, tiny inputs, and which tests a call selects.

A test without a marker runs in `bash scripts/test.sh`; `slow` ones run with --all, too, and `soak`
ones by `bash scripts/soak.sh`.
"""

import gc
import os
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
from tests import processes

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
def clean_process():
    """Start every test from the same random numbers. Leave no stop request and no process."""
    torch.manual_seed(0)
    yield
    signals._request = signals._launcher_pid = None
    processes.kill_started()


@pytest.fixture(scope="session")
def repository():
    """Return the root folder of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder of sample annotations and photos; skip the test where there is none."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: the sample files are not part of the repository")
    return folder


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """Return the path of a BERT vocabulary of a few words."""
    from tests import tiny

    return tiny.write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")


@pytest.fixture(scope="session")
def make_captioner(vocabulary):
    """Return a function that builds a tiny captioner, in evaluation mode, by the same settings."""
    from tests import tiny

    return lambda **settings: tiny.make_captioner(vocabulary, **settings)


@pytest.fixture(scope="session")
def itm_checkpoint(vocabulary, tmp_path_factory):
    """Return a file in the layout of BLIP's retrieval, of random weights, beside its vocabulary."""
    from tests import tiny

    return tiny.save_itm(tmp_path_factory.mktemp("itm"), vocabulary)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Return the folder of a small captioned data set."""
    from captioning.scenes.make import make_scenes

    folder = tmp_path_factory.mktemp("data") / "scenes"
    make_scenes(folder, splits={"train": 24, "val": 5, "test": 7})
    return folder


@pytest.fixture(scope="session")
def scenes_config(scenes, tmp_path_factory):
    """Return the path of a configuration of a run of seconds, which needs no Java."""
    from tests import tiny

    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(tiny.TINY_RUN.format(data=scenes) + "max_length: 16\nmetrics: [length]\n")
    return path


@pytest.fixture(scope="session")
def trained(scenes_config, tmp_path_factory):
    """Return a function that copies an ended run, of a captioner of `tiny.CAPTIONERS`, to a folder.

    The run has one epoch, and captions and scores of its test split. It is trained once.
    """
    from tests import tiny

    runs = {}

    def copy(folder, captioner="blip"):
        if captioner not in runs:
            runs[captioner] = tmp_path_factory.mktemp("trained") / "run"
            tiny.train_run(scenes_config, runs[captioner], captioner)
        return tiny.copy_run(runs[captioner], folder)

    return copy


@pytest.fixture
def hub_model(monkeypatch, tmp_path_factory):
    """Return the folder of the model owner/name in a cache of the hub that has nothing else."""
    cache, commit = tmp_path_factory.mktemp("hub"), "0" * 40
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    model = cache / "models--owner--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    (model / "snapshots" / commit).mkdir(parents=True)
    return model / "snapshots" / commit


@pytest.fixture
def quick_compiler(monkeypatch):
    """Let torch.compile trace and run what it traced, without making machine code of it.

    Returns the backend, whose frame_count is the number of compilations.
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()  # what other tests have compiled counts towards a limit
    counter, compiled = CompileCounterWithBackend("aot_eager"), torch.compile

    def quick(call, mode=None, **options):  # the mode is that of the usual backend
        return compiled(call, **{"backend": counter, **options})

    monkeypatch.setattr("torch.compile", quick)
    return counter


@pytest.fixture(scope="module")
def browser():
    """Return playwright's Browser; skip the test where there is no Chromium."""
    from tests.chromium import PROGRAM, chromium

    if PROGRAM is None:
        pytest.skip("chromium is not installed")
    with chromium() as started:
        yield started
