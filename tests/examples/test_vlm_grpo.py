"""The recipe trains a tiny vision-language model by GRPO, with and without a likelihood."""

import importlib

import pytest
import torch
import transformers

from tests.programs import refused
from tests.vlm import folders

for library in ("trl", "peft", "accelerate", "datasets"):
    pytest.importorskip(library, reason="what TRL needs is in the tests from Python 3.11")


@pytest.fixture(scope="module")
def arguments(scenes, repository, tmp_path_factory):
    model = tmp_path_factory.mktemp("model")
    folders.write("Idefics3ForConditionalGeneration", str(model))
    settings = [f"image_root={scenes}", f"ann_root={scenes}", f"vlm={model}", "reward_samples=2"]
    settings += ["batch_size=2", f"output_dir={model}/unused", "dataset=custom"]
    settings += [f"{split}_file=scenes_{split}.json" for split in ("train", "val", "test")]
    settings += ["facts_file=scenes.json", "init_lr=1e-3"]
    return [str(repository / "configs" / "vlm_coco.yaml"), *settings]


def test_rewards_and_likelihood_reach_the_loss(arguments, tmp_path):
    settings = ["objective={mle: 0.4, smile: 0.6}", "max_tokens=3", f"output_dir={tmp_path}"]
    given = ["--reward", "{facts: 1, cider: 0.5}", "--steps", "1", "--likelihood", "0.1"]
    main = importlib.import_module("examples.vlm_grpo").main
    trainer = main([*arguments, *settings, "label_smoothing=0", *given])
    logged = {key: value for line in trainer.state.log_history for key, value in line.items()}
    # Of completions of one length, GRPO's loss is the mean of their advantages: 0.
    assert logged["completions/min_length"] == 3
    mixture = 0.4 * logged["mle"] + 0.6 * logged["smile"]
    assert logged["train_loss"] == pytest.approx(0.1 * mixture, rel=1e-3)
    facts, cider = (logged[f"rewards/{name}/mean"] for name in ("facts", "cider"))
    assert logged["reward"] == pytest.approx(facts + 0.5 * cider, abs=1e-5)
    load = transformers.AutoModelForImageTextToText.from_pretrained
    base = arguments[3].partition("=")[2]
    before, after = (load(folder).state_dict() for folder in (base, tmp_path))
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_a_reward_or_model_that_is_none_is_one_line(arguments):
    for reward, model, line in (
        ("cider", [], "--reward is 'cider': give weights by name"),
        ("{itm: 1}", [], "reward: itm needs itm_model"),
        ("{cider: 1}", ["vlm=nowhere"], "nowhere"),
    ):
        refused("examples.vlm_grpo", *arguments, "--reward", reward, *model, part=line)
