"""A new captioner package works in every program after it is registered."""

import ast
from pathlib import Path

import pytest

from captioning.captioners import interface
from captioning.captioners.registry import CAPTIONERS
from captioning.models.build import check_interface
from captioning.runtime.registry import load
from smile import Objective
from tests.captioning.captioners import fake
from tests.programs import captioned_everywhere, run_programs
from tests.tiny_run import TINY_RUN

ENTRY = """
from captioning.captioners.registry import CAPTIONERS
CAPTIONERS["fake"] = "tests.captioning.captioners.fake"
"""


@pytest.fixture(scope="module")
def results(scenes, tmp_path_factory, repository):
    """Return the folder of a run of the fake captioner, and the programs' stdout and stderr."""
    folder = tmp_path_factory.mktemp("fake")
    config, run = folder / "fake.yaml", folder / "run"
    text = TINY_RUN.replace("batch_size: 8", "batch_size: 4").format(data=scenes)
    config.write_text(
        f"{text}model: fake\nfake_width: 6\nlr_schedule: exponential\ndevice: cpu\nmin_length: 1\n"
        "metrics: [length, facts]\nfacts_file: scenes.json\ncheckpoint_every: 2\n"
    )
    train = ["--config", str(config), "--output_dir", str(run)]
    other = [*train[:3], str(folder / "other")]
    out = str(folder / "captions.jsonl")
    best = ["--checkpoint", str(run / "checkpoint_best.pth")]
    truth = ["--references", str(scenes / "scenes_test.json")]
    programs = [
        ("captioning.train", [*train, "max_epoch=1"], 0),
        ("captioning.train", [*train, "max_epoch=2"], 0),
        ("captioning.train", [*train, "max_epoch=2", "fake_width=7"], 2),
        ("captioning.train", [*train, "max_epoch=2", "resume=never", "precision=fp16"], 2),
        ("captioning.train", [*other, "drop_image=0.5"], 2),
        ("captioning.train", [*other, "guidance_scale=2"], 2),
        ("captioning.train", [*other, "rerank=mmi"], 2),
        ("captioning.train", [*train, "max_epoch=2", "--evaluate", "--eval_split", "test"], 0),
        ("captioning.caption", [str(run), str(scenes / "images"), "--out", out], 0),
        ("captioning.calibrate", best, 0),
        ("captioning.evaluate", [str(run / "result/test.json"), "--metrics", "length", *truth], 0),
        ("captioning.report.__main__", [str(run), "--output", str(folder / "report.html")], 0),
        ("captioning.attend", [*best, str(min((scenes / "images").iterdir()))], 2),
        ("tests.captioning.captioners.page", [str(run), str(folder / "page.json")], 0),
    ]
    return folder, *run_programs(programs, folder, repository, ENTRY)


def test_it_is_trained_and_goes_on(results):
    folder, _, said = results
    assert "no checkpoint: the weights are a fake's" in said
    assert f"resuming from {folder / 'run' / 'checkpoint_00.pth'}" in said
    assert (folder / "run" / "checkpoint_01.pth").exists()
    assert "fake_width: 6" in (folder / "run" / "config.yaml").read_text()


def test_its_own_keys_have_roles_and_its_own_limits_hold(results):
    _, _, said = results
    assert "had other settings (fake_width was 6, is 7)" in said
    assert "error: precision is fp16, which a fake has not; try fp32" in said
    for key in ("drop_image is 0.5", "guidance_scale is 2.0", "rerank is mmi"):
        assert f"error: {key}, but this captioner has no null image; unset it" in said


def test_it_captions_the_same_everywhere(results):
    folder, _, _ = results
    caption, words, label, split = captioned_everywhere(folder)
    assert all(entry["caption"] for entry in split)
    assert [word for word in words if word != "<END>"] == caption.split()
    assert label == "Fake, MLE+SMILE 0.5:0.5"


def test_it_is_scored_and_reported(results):
    folder, shown, said = results
    assert "Cap. Len." in shown and "negative log-likelihood" in shown
    assert "Fake, MLE+SMILE 0.5:0.5" in (folder / "report.html").read_text()
    assert "gives no attention maps" in said


def members(protocol):
    source = ast.parse(Path(interface.__file__).read_text(encoding="utf-8"))
    body = next(node.body for node in source.body if getattr(node, "name", "") == protocol)
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return functions | {node.target.id for node in body if isinstance(node, ast.AnnAssign)}


@pytest.mark.parametrize("package", [*CAPTIONERS.values(), fake.__name__])
def test_a_package_offers_all_that_is_written_down(package):
    assert all(hasattr(load(package), name) for name in members("CaptionerPackage"))


def test_what_a_captioner_lacks_is_said_when_it_is_built():
    class Hasty(fake.FakeCaptioner):
        score_tokens = saved_beside_weights = property()

    with pytest.raises(TypeError, match="Hasty lacks score_tokens, saved_beside_weights"):
        check_interface(Hasty(["a"], Objective("smile"), "", 4))
