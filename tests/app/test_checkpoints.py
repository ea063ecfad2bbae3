"""Which checkpoints the page has, and what it calls them."""

import shutil

import pytest
import torch

from app.checkpoints import demos_checkpoints, load_checkpoints
from captioning.runtime.errors import UserError

CPU = torch.device("cpu")


def test_labels_are_the_objectives_and_colours_those_of_the_report(checkpoints, run_folders):
    assert [c.label for c in checkpoints] == ["MLE", "SMILE", "MLE+SMILE 0.5:0.5"]
    assert [c.colour for c in checkpoints] == ["#0072b2", "#d55e00", "#00805c"]
    assert checkpoints[0].source == str(run_folders[0] / "checkpoint_best.pth")


def test_equal_objectives_are_told_apart_by_their_folders(run_folders, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(run_folders[1], tmp_path / name)
    found = load_checkpoints([str(tmp_path / name) for name in ("first", "second")], None, CPU)
    assert [c.label for c in found] == ["SMILE (first)", "SMILE (second)"]
    assert found[0].colour != found[1].colour


def test_weights_from_elsewhere_take_the_configuration_that_is_named(run_folders, tmp_path):
    content = torch.load(run_folders[0] / "checkpoint_best.pth", weights_only=False)
    torch.save({"model": content["model"]}, tmp_path / "released.pth")
    sources = [str(tmp_path / "released.pth"), str(run_folders[1])]
    config = run_folders[0] / "config.yaml"
    found = load_checkpoints(sources, str(config), CPU)
    assert [c.label for c in found] == ["released", "SMILE"]
    with pytest.raises(UserError, match="name one with --config"):
        load_checkpoints(sources, None, CPU)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["{runs}/mle", "{runs}/mle/checkpoint_best.pth"], "is named twice"),
        (["{runs}"], "holds no checkpoint of a run"),
        (["{runs}/nothing.pth"], "does not exist"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(run_folders, sources, message):
    sources = [source.format(runs=run_folders[0].parent) for source in sources]
    with pytest.raises(UserError, match=message) as caught:
        load_checkpoints(sources, None, CPU)
    assert "\n" not in str(caught.value)


def test_without_a_name_the_demos_are_taken(run_folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"bash scripts/demo\.sh"):
        demos_checkpoints()
    for folder, names in (("demo-quick", ["mle", "smile", "mle_smile"]), ("demo", ["smile"])):
        for name in names:
            path = tmp_path / "output" / folder / name / "checkpoint_best.pth"
            path.parent.mkdir(parents=True)
            path.touch()
        expected = [f"output/{folder}/{name}/checkpoint_best.pth" for name in names]
        assert demos_checkpoints() == expected
