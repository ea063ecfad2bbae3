"""SmileLossMixin: what a trainer does around a step."""

import json

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import use_smile
from tests.smile import tiny_vlm
from tests.smile import trainer_parts as parts
from tests.smile.largest_made import LargestMade
from tests.smile.trainer_parts import CAPTIONS, SmileSFTTrainer, SmileTrainer, check, llama, make

ACCUMULATED = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
BOTH = pytest.mark.parametrize("cls", [SmileTrainer, SmileSFTTrainer])
BOTH_AND_SFT_QUICK = pytest.mark.parametrize(
    "cls", [pytest.param(SmileTrainer, marks=pytest.mark.slow), SmileSFTTrainer]
)


@BOTH_AND_SFT_QUICK
def test_logs_have_each_part_and_no_figure_of_another_loss(cls, tmp_path):
    options = {"max_steps": 4, "logging_steps": 2, "learning_rate": 0.1, **ACCUMULATED}
    trainer = make(cls, tmp_path, eval_dataset=parts.data_set(), **options)
    trainer.train()
    metrics = trainer.evaluate()
    for entry in (*parts.logs(trainer), metrics):
        prefix = "eval_" if "eval_loss" in entry else ""
        mle, smile = (entry[f"{prefix}loss_{name}"] for name in ("mle", "smile"))
        assert 0 < smile < mle
        assert entry[f"{prefix}loss"] == pytest.approx(0.3 * mle + 0.7 * smile, rel=1e-5)
        assert not [name for name in entry if "accuracy" in name or "entropy" in name]
    assert len(parts.logs(trainer)) == 2
    if cls is SmileSFTTrainer:
        tokens = sum(len(row["input_ids"]) for row in parts.rows())
        assert parts.logs(trainer, "num_tokens")[-1]["num_tokens"] == 4 * tokens


@BOTH
def test_evaluation_makes_logits_only_if_from_hidden_is_off(cls, tmp_path):
    """It is the objective's, without logits. The trainer weights batches by their rows."""
    model, smile = llama(vocab_size=3000), Objective("smile")
    batches = (parts.rows()[:3], parts.rows()[3:])
    loss = sum(parts.expected(batch, model, smile)[0] * len(batch) for batch in batches) / 5
    options = {"eval_dataset": parts.data_set(), "per_device_eval_batch_size": 3}
    options.update(model=model, objective=smile)
    for from_hidden, logits in ((True, False), (False, True)):
        trainer = make(cls, tmp_path, from_hidden=from_hidden, **options)
        with LargestMade() as largest:
            assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)
        assert (largest.elements > 3000 * parts.LLAMA["hidden_size"]) == logits


@BOTH
def test_compute_metrics_gets_the_logits_of_the_evaluation_loss(cls, tmp_path):
    seen = {}

    def compute_metrics(prediction):
        given = prediction.predictions
        seen["logits"] = torch.tensor(given[0] if isinstance(given, tuple) else given)
        seen["labels"] = torch.tensor(prediction.label_ids)
        return {"half": 0.5}

    trainer = make(cls, tmp_path, eval_dataset=parts.data_set(), compute_metrics=compute_metrics)
    metrics, (loss, _) = trainer.evaluate(), parts.expected()
    assert metrics["eval_half"] == 0.5
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-6)
    again = parts.MIXTURE(seen["logits"][:, :-1], seen["labels"][:, 1:]).loss
    assert again.item() == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_a_model_of_model_init_is_trained_with_the_objective(tmp_path):
    """It is built twice: at first, and when training begins."""
    made = []

    def model_init():
        made.append(llama())
        made[-1].accepts_loss_kwargs = False  # as of Qwen-VL, whose loss divides by its own tokens
        return made[-1]

    trainer = make(SmileTrainer, tmp_path, model_init=model_init, **ACCUMULATED)
    check(trainer)
    assert len(made) == 2 and trainer.model is made[-1]


def test_the_evaluation_loss_is_the_same_with_predict_with_generate(tmp_path):
    options = {"predict_with_generate": True, "generation_max_length": 12}
    options["compute_metrics"] = lambda found: {"n": len(found.predictions)}
    options.update(model=parts.t5(), eval_dataset=parts.data_set())
    metrics = make(parts.SmileSeq2SeqTrainer, tmp_path, **options).evaluate()
    loss, _ = parts.expected(model=parts.t5())
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-6)
    assert metrics["eval_n"] == len(CAPTIONS)


@BOTH_AND_SFT_QUICK
def test_router_losses_are_averaged_and_weighted_by_their_coefficient(cls, tmp_path):
    """The coefficient is TRL's if given, over accumulated batches."""
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 5}
    coefficient = 0.3
    if cls is SmileSFTTrainer:
        options["router_aux_loss_coef"] = coefficient = 0.5
    trainer, asked = make(cls, tmp_path, model=parts.mixtral(), **options), []
    trainer.model.register_forward_pre_hook(lambda *x: asked.append(x[-1]), with_kwargs=True)
    parts.check_routers(trainer, parts.rows(), coefficient)
    # Models of earlier versions pass over the configuration.
    assert ("output_router_logits" in asked[0]) == (cls is SmileSFTTrainer)


def collate(examples):
    """Return one packed row with a weight for every token."""
    ends = torch.tensor([len(example["input_ids"]) for example in examples])
    batch = {
        key: torch.tensor([[x for example in examples for x in example[key]]])
        for key in ("input_ids", "weights")
    }
    batch["position_ids"] = torch.cat([torch.arange(end) for end in ends])[None]
    return {**batch, "labels": batch["input_ids"].clone(), "weights": batch["weights"].double()}


@BOTH_AND_SFT_QUICK
def test_weights_of_tokens_in_packed_rows_weigh_loss_and_gradients(cls, tmp_path):
    data = [{"input_ids": parts.ids(caption)} for caption in CAPTIONS]
    for row in data:
        row["weights"] = [0.5 + n % 3 for n in range(len(row["input_ids"]))]
    trainer = make(cls, tmp_path, data, data_collator=collate, from_hidden=True, **ACCUMULATED)
    check(trainer, [{**row, "labels": row["input_ids"]} for row in data])


@pytest.mark.slow
def test_a_text_of_trl_with_a_labelled_image_is_refused(tmp_path):
    """tests/examples/test_vlm_lora.py has rows with a prompt, which TRL's collator ignores."""
    from PIL import Image

    folder = str(tmp_path / "model")
    tiny_vlm.write(folder)
    text = "User:<image> what is it.\nAssistant: a disc<end_of_utterance>"
    data = [{"images": [Image.effect_noise((32, 16), 80).convert("RGB")], "text": text}]
    options = {"max_length": None, "remove_unused_columns": False}
    options["processing_class"] = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    trainer = make(SmileSFTTrainer, tmp_path, data, model, **options)
    parts.refused_in_training(trainer, "row 0 of the labels .* completion_only_loss=True")


def test_the_trainers_objective_replaces_that_of_the_model_and_is_not_saved(tmp_path):
    trainer = make(SmileSFTTrainer, tmp_path, model=use_smile(llama(), Objective("reverse")))
    check(trainer)
    trainer.save_model(str(tmp_path / "saved"))
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("made", [llama, pytest.param(parts.t5, marks=pytest.mark.slow)])
def test_columns_of_segments_and_weights_reach_the_loss(made, tmp_path):
    """Trainer removes columns that are not in the signature of the forward."""
    row = max(parts.rows(), key=lambda row: len(row["labels"]))
    middle = len(row["labels"]) // 2
    row["segments"] = [place // middle for place in range(len(row["labels"]))]
    row["weights"] = [0.5 + place % 3 for place in range(len(row["labels"]))]
    model = use_smile(made(), parts.MIXTURE)
    trainer = make(transformers.Trainer, tmp_path, [row], model, eval_dataset=parts.data_set([row]))
    batch = {key: torch.tensor([value]) for key, value in row.items()}
    first = int(made is llama)  # whose first label nothing predicts
    tokens = (batch["labels"][:, first:] != -100).sum()
    model = use_smile(made().train(), parts.MIXTURE)
    expected = model(**batch, num_items_in_batch=tokens).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.train().training_loss == pytest.approx(expected, rel=1e-6)


WINDOW = {"mle": 0.1, "truncation": {"weight": 0.9, "drop": 0.5, "window": 6}}
OPTIONS = {
    **{"max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 0.01},
    **{"save_strategy": "steps", "save_steps": 2, "ignore_data_skip": False},
}


@pytest.mark.slow
@BOTH
def test_the_window_of_truncation_is_that_of_the_undisturbed_run(cls, tmp_path):
    undisturbed = make(cls, tmp_path / "whole", objective=Objective(WINDOW), **OPTIONS)
    undisturbed.train()
    other = llama(initializer_range=0.5)
    resumed = make(cls, tmp_path / "run", model=other, objective=Objective(WINDOW), **OPTIONS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    losses = [[entry["loss"] for entry in parts.logs(each)] for each in (resumed, undisturbed)]
    assert losses[0] == losses[1]
    torch.testing.assert_close(
        parts.step_gradients(resumed), parts.step_gradients(undisturbed), rtol=0, atol=0
    )
    state = undisturbed.smile_objective.state()
    assert state["seen"] == 8 - 1  # the last row begins an epoch alone
    torch.testing.assert_close(resumed.smile_objective.state(), state)


@pytest.mark.slow
def test_a_checkpoint_without_a_window_is_told_of(tmp_path):
    make(SmileTrainer, tmp_path, objective="smile", **OPTIONS).train()
    assert not list(tmp_path.rglob("smile_objective*"))
    resumed = make(SmileTrainer, tmp_path, objective=Objective(WINDOW), **OPTIONS)
    line = "drops no captions until its window is full again: .*checkpoint-2"
    with pytest.warns(UserWarning, match=line):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
