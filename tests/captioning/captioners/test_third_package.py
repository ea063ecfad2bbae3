"""A captioner package of another project works in every program once it is registered."""

import ast
from pathlib import Path
from typing import Literal

import pytest
from pydantic import create_model

from captioning.captioners import interface
from captioning.captioners.registry import CAPTIONERS
from captioning.config import Config
from captioning.runtime.registry import load
from tests.captioning.captioners import fake
from tests.programs import captioned_everywhere, one_error_line, run_program
from tests.tiny import TINY_RUN


@pytest.fixture(scope="module")
def results(scenes, tmp_path_factory):
    """Yield the folder of a run of the fake captioner, and what programs printed, by a name.

    The fake is named as if it had been in the registry when the configuration was imported.
    """
    folder = tmp_path_factory.mktemp("fake")
    config, run = folder / "fake.yaml", folder / "run"
    text = TINY_RUN.replace("batch_size: 8", "batch_size: 4").format(data=scenes)
    config.write_text(
        f"{text}model: fake\nfake_width: 6\nlr_schedule: exponential\ndevice: cpu\nmin_length: 1\n"
        "metrics: [length, facts]\nfacts_file: scenes.json\ncheckpoint_every: 2\ndrop_image: 0.3\n"
    )
    train = ["captioning.train", "--config", config, "--output_dir", run, "max_epoch=2"]
    other = [*train[:4], folder / "other"]
    best = ["--checkpoint", run / "checkpoint_best.pth"]
    made, truth = run / "result/test.json", scenes / "scenes_test.json"
    bulk, report = folder / "captions.jsonl", folder / "report.html"
    programs = {
        "begun": (0, *train[:-1], "max_epoch=1"),
        "resumed": (0, *train),
        "another width": (2, *train, "fake_width=7"),
        "fp16": (2, *other, "precision=fp16"),
        "split": (0, *train, "--evaluate", "--eval_split", "test"),
        "captions": (0, "captioning.caption", run, scenes / "images", "--out", bulk),
        "calibrated": (0, "captioning.calibrate", *best),
        "scored": (0, "captioning.evaluate", made, "--metrics", "length", "--references", truth),
        "report": (0, "captioning.report", run, "--output", report),
        "maps": (2, "captioning.attend", *best, min((scenes / "images").iterdir())),
    }
    outcomes = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CAPTIONERS, "fake", fake.__name__)
        names = Literal[tuple(CAPTIONERS)]
        with_fake = create_model("Config", __base__=(fake.Keys, Config), model=(names, "blip"))
        patch.setattr("captioning.config.config.Config", with_fake)
        for name, (code, *call) in programs.items():
            outcomes[name] = run_program(*call)
            assert outcomes[name].code == code, (name, outcomes[name].err)
        yield folder, outcomes


def test_it_is_trained_goes_on_and_is_captioned_scored_and_reported(results):
    folder, outcomes = results
    assert "no checkpoint: the weights are a fake's" in outcomes["begun"].err
    assert f"resuming from {folder / 'run' / 'checkpoint_00.pth'}" in outcomes["resumed"].err
    assert (folder / "run" / "checkpoint_01.pth").exists()
    assert "fake_width: 6" in (folder / "run" / "config.yaml").read_text()
    assert "Cap. Len." in outcomes["scored"].out
    assert "negative log-likelihood" in outcomes["calibrated"].out
    label = captioned_everywhere(folder)["label"]
    assert label == "Fake, MLE+SMILE 0.5:0.5" and label in (folder / "report.html").read_text()


def test_its_own_keys_have_roles_and_its_own_limits_hold(results):
    _, outcomes = results
    one_error_line(outcomes["another width"].err, "had other settings (fake_width was 6, is 7)")
    one_error_line(outcomes["fp16"].err, "error: precision is fp16, which a fake has not; try fp32")
    one_error_line(outcomes["maps"].err, "gives no attention maps")


def members(protocol):
    source = ast.parse(Path(interface.__file__).read_text(encoding="utf-8"))
    body = next(node.body for node in source.body if getattr(node, "name", "") == protocol)
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return functions | {node.target.id for node in body if isinstance(node, ast.AnnAssign)}


@pytest.mark.parametrize("package", sorted({*CAPTIONERS.values(), fake.__name__}))
def test_a_package_has_every_name_of_the_interface(package):
    names = members("CaptionerPackage")
    assert len(names) > 5 and all(hasattr(load(package), name) for name in names)
