"""The checkpoints of the page, and their labels."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from app import view
from app.__main__ import command_line
from app.checkpoints import find_demo_checkpoints, load_checkpoints
from BLIP.convert import save_hf
from captioning.models.build import load_trained
from captioning.runtime.errors import UserError

CPU = torch.device("cpu")


def test_labels_are_objectives_with_folders_of_equal_ones_and_weights_have_their_names(
    service, run_folders, tmp_path
):
    checkpoints, best = service.checkpoints, run_folders[0] / "checkpoint_best.pth"
    assert [c.label for c in checkpoints] == ["MLE", "SMILE", "MLE+SMILE 0.5:0.5"]
    assert [c.colour for c in checkpoints] == ["#0072b2", "#d55e00", "#00805c"]
    assert checkpoints[0].source == str(best)
    shutil.copytree(run_folders[1], tmp_path / "second")
    torch.save({"model": torch.load(best, weights_only=False)["model"]}, tmp_path / "released.pth")
    save_hf(load_trained(str(best), None, CPU)[1], tmp_path / "owner" / "name")
    sources = [str(tmp_path / name) for name in ("released.pth", "owner/name", "second")]
    config = str(run_folders[0] / "config.yaml")
    found = load_checkpoints([*sources, str(run_folders[1])], config, CPU)
    assert [c.label for c in found] == ["released", "name", "SMILE (second)", "SMILE (smile)"]
    assert len({c.colour for c in found}) == 4


def test_secrets_of_an_address_are_shown_nowhere(run_folders, monkeypatch, capsys):
    file, config = run_folders[0] / "checkpoint_best.pth", str(run_folders[0] / "config.yaml")
    load = Mock(side_effect=lambda _, *others: load_trained(str(file), *others))
    monkeypatch.setattr("app.checkpoints.load_trained", load)
    address = "https://user:PASSWORD@store.example/models/best.pth?X-Amz-Signature=SECRET.pth"
    (found,) = load_checkpoints([address], config, CPU)
    assert load.call_args.args[0] == address
    assert (found.source, found.label) == ("https://store.example/models/best.pth", "best")
    limits = command_line().parse_args([])
    page = view.render("about.html", checkpoints=[found], parameters=["seed"], limits=limits)
    assert found.source in page and "50 million pixels" in page
    texts = "".join([page, repr(found), *capsys.readouterr()])
    assert not any(secret in texts for secret in ("PASSWORD", "SECRET", "user:"))


def test_the_default_is_the_demos_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"bash scripts/demo\.sh"):
        find_demo_checkpoints()
    for folder, names in (("demo-quick", ["mle", "smile", "mle_smile"]), ("demo", ["smile"])):
        paths = [Path(f"output/{folder}/{name}/checkpoint_best.pth") for name in names]
        for path in paths:
            path.parent.mkdir(parents=True)
            path.touch()
        assert find_demo_checkpoints() == [*map(str, paths)]
