"""The checkpoints of the page, and their labels."""

import shutil

import pytest
import torch

from app import view
from app.__main__ import command_line
from app.checkpoints import find_demo_checkpoints, load_checkpoints
from BLIP.convert import save_hf
from captioning.models.build import load_trained
from captioning.runtime.errors import UserError
from tests.programs import raises_line

CPU = torch.device("cpu")


def test_labels_are_the_objectives_with_the_folders_of_equal_ones(
    checkpoints, run_folders, tmp_path
):
    assert [c.label for c in checkpoints] == ["MLE", "SMILE", "MLE+SMILE 0.5:0.5"]
    assert [c.colour for c in checkpoints] == ["#0072b2", "#d55e00", "#00805c"]
    assert checkpoints[0].source == str(run_folders[0] / "checkpoint_best.pth")
    for name in ("first", "second"):
        shutil.copytree(run_folders[1], tmp_path / name)
    found = load_checkpoints([str(tmp_path / name) for name in ("first", "second")], None, CPU)
    assert [c.label for c in found] == ["SMILE (first)", "SMILE (second)"]
    assert found[0].colour != found[1].colour
    for again in (f"{tmp_path}/first", f"{tmp_path}/second/../first/checkpoint_best.pth"):
        with raises_line(UserError, "is named twice"):
            load_checkpoints([str(tmp_path / "first"), again], None, CPU)


def test_secrets_of_an_address_are_shown_nowhere(run_folders, monkeypatch, capsys):
    file, config = run_folders[0] / "checkpoint_best.pth", str(run_folders[0] / "config.yaml")
    loaded = []

    def load(path, *others):
        loaded.append(path)
        return load_trained(str(file), *others)

    monkeypatch.setattr("app.checkpoints.load_trained", load)
    first = "https://user:PASSWORD@store.example/models/best.pth?X-Amz-Signature=SECRET.pth"
    sources = [first, first.replace("SECRET", "OTHER_SECRET")]
    found = load_checkpoints(sources, config, CPU)
    assert loaded == sources
    assert [c.source for c in found] == ["https://store.example/models/best.pth"] * 2
    assert len({c.label for c in found}) == 2 and all(c.label.startswith("best") for c in found)
    limits = command_line().parse_args([])
    page = view.render("about.html", checkpoints=found, parameters=["seed"], limits=limits)
    texts = [page, repr(found), *capsys.readouterr()]
    assert "https://store.example/models/best.pth" in page and "50 million pixels" in page
    assert not any(secret in text for text in texts for secret in ("PASSWORD", "SECRET", "user:"))


def test_weights_without_a_run_are_named_by_their_file(run_folders, tmp_path):
    content = torch.load(run_folders[0] / "checkpoint_best.pth", weights_only=False)
    torch.save({"model": content["model"]}, tmp_path / "released.pth")
    sources = [str(tmp_path / "released.pth"), str(run_folders[1])]
    found = load_checkpoints(sources, str(run_folders[0] / "config.yaml"), CPU)
    assert [c.label for c in found] == ["released", "SMILE"]
    save_hf(load_trained(sources[1], None, CPU)[1], tmp_path / "owner" / "name")
    (found,) = load_checkpoints([str(tmp_path / "owner" / "name")], None, CPU)
    assert found.label == "name"


def test_the_default_is_the_demos_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"bash scripts/demo\.sh"):
        find_demo_checkpoints()
    for folder, names in (("demo-quick", ["mle", "smile", "mle_smile"]), ("demo", ["smile"])):
        for name in names:
            path = tmp_path / "output" / folder / name / "checkpoint_best.pth"
            path.parent.mkdir(parents=True)
            path.touch()
        expected = [f"output/{folder}/{name}/checkpoint_best.pth" for name in names]
        assert find_demo_checkpoints() == expected
