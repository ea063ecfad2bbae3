"""Sharded checkpoints: read like files, refused if damaged, never executed."""

import pickle

import pytest
import torch

pytest.importorskip("torch.distributed.checkpoint", reason="this torch has no processes")

from BLIP import read_checkpoint
from BLIP.weights.sharded_checkpoint import INDEX, NON_TENSORS
from captioning.models import checkpoints
from captioning.models.sharded_checkpoint import save_sharded
from captioning.runtime.errors import UserError
from tests.attacks import Attack
from tests.captioning.models.kills import killed_at_each_operation, newest_after_a_kill
from tests.programs import refused, run_program

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
OTHER_CONTENT = {"model": {}, "optimizer": {"param_groups": []}, "config": {"seed": 3}}


@pytest.fixture
def save(tmp_path):
    """Return a function that writes the checkpoint of an epoch and returns its folder."""

    def save(epoch, dtype=torch.float32, folder=tmp_path):
        weights = torch.full((3, 2), float(epoch), dtype=dtype)
        tensors = {"model.a.w": weights, "model.n": torch.tensor(7), "optimizer.0.step": weights}
        path = checkpoints.epoch_path(folder, epoch)
        save_sharded({**OTHER_CONTENT, "epoch": epoch}, tensors, path)
        return path

    return save


def test_a_sharded_checkpoint_is_read_as_a_file_is(save, tmp_path):
    content = read_checkpoint(str(save(4, torch.bfloat16)))
    assert content["config"] == {"seed": 3} and content["epoch"] == 4
    assert content["model"].keys() == {"a.w", "n"} and content["model"]["n"].item() == 7
    assert content["model"]["a.w"].equal(torch.full((3, 2), 4.0, dtype=torch.bfloat16))
    assert checkpoints.resolve(str(tmp_path)) == checkpoints.resolve(
        str(tmp_path / "checkpoint_04.pth")
    )


def test_one_is_written_in_the_place_of_another_and_of_a_file(save, tmp_path):
    checkpoints.epoch_path(tmp_path, 0).write_bytes(b"a file")
    for _ in range(2):
        save(0)
        checkpoints.keep_as_best(tmp_path, 0)
    names = {"checkpoint_00.pth", "checkpoint_best.pth"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("part", [NON_TENSORS, INDEX, "__0_0.distcp"])
@pytest.mark.parametrize("harm", ["cut", "missing", "flipped bit"])
def test_a_damaged_one_is_passed_over(save, tmp_path, part, harm):
    save(0)
    path = save(1) / part
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(content[:100])
    else:
        path.write_bytes(content[:200] + bytes([content[200] ^ 4]) + content[201:])
    found, content, (line,) = checkpoints.read_newest(tmp_path)
    assert found.name == "checkpoint_00.pth" and content["epoch"] == 0
    assert "checkpoint_01.pth cannot be read: it is damaged (" in line
    assert (tmp_path / "checkpoint_01.pth.bad").is_dir()
    if harm == "flipped bit":
        return
    with pytest.raises(ValueError, match=r"is damaged|is a folder, not a checkpoint") as error:
        read_checkpoint(str(tmp_path / "checkpoint_01.pth.bad"))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_killed_before_any_file_operation_there_is_a_verified_checkpoint(save, tmp_path):
    for epoch in (0, 1):
        save(epoch)

    def act(folder):
        save(2, folder=folder)
        checkpoints.remove_oldest(folder, 2)
        checkpoints.keep_as_best(folder, 1)

    for folder in killed_at_each_operation(tmp_path, act, least=20):
        path, newest = newest_after_a_kill(folder)
    assert newest["epoch"] == 2
    assert read_checkpoint(str(path))["model"]["a.w"].max() == 2


def test_code_in_any_of_its_files_is_refused_and_not_run(save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = save(0)
    index = (path / INDEX).read_bytes()
    (path / INDEX).write_bytes(pickle.dumps(Attack()))
    with pytest.raises(ValueError, match=r"checkpoint_00.pth has objects that could run code"):
        read_checkpoint(str(path))
    (path / INDEX).write_bytes(index.replace(b"TensorStorageMetadata", b"BytesStorageMetadata"))
    with pytest.raises(ValueError, match=r"checkpoint_00.pth "):
        read_checkpoint(str(path))
    (path / INDEX).write_bytes(index)
    torch.save(Attack(), path / NON_TENSORS)
    with pytest.raises(ValueError, match="has objects that could run code"):
        read_checkpoint(str(path))
    with pytest.raises(UserError):
        checkpoints.read(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("harm", ["larger", "not there"])
def test_an_index_that_says_more_than_there_is_is_refused(save, harm):
    """Otherwise tensors would have arbitrary values, or more bytes than the memory."""
    index = save(0) / INDEX
    content = pickle.loads(index.read_bytes())
    told = content.state_dict_metadata["model.a.w"]
    if harm == "larger":
        told.size = torch.Size([2**44])
        told.chunks[0].sizes = told.size
    else:
        told.chunks.clear()
    index.write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=r"is damaged: (it states larger|it does not have all of)"):
        read_checkpoint(str(index.parent))


def test_gathered_it_is_a_file_and_replaces_none(save, tmp_path):
    path, target = save(2), tmp_path / "whole.pth"
    assert run_program("captioning.gather", path, target).code == 0
    content = torch.load(target, weights_only=True)
    assert content["model"]["a.w"].max() == 2 and content["config"] == {"seed": 3}
    checkpoints.check_whole(target)
    line = f"error: {target} exists already: choose another file name"
    assert refused("captioning.gather", path, target) == line
