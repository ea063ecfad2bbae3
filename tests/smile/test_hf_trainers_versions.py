"""SmileLossMixin and use_smile with trainers as they were in earlier TRL and transformers.

Here they are imitated by what differed; tests/smile/trl_versions.py tries the releases themselves.
"""

import pytest
import torch
import transformers

from smile.hf import SmileLossMixin, use_smile
from tests.smile import trl_versions
from tests.smile.trainer_parts import (
    CAPTIONS,
    MIXTURE,
    SmileSFTTrainer,
    check,
    datasets,
    definition,
    llama,
    make,
    rows,
    trl,
)

UNEVEN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}


def test_the_release_that_is_installed(tmp_path, capsys):
    assert trl_versions.here(str(tmp_path), [True])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("padded, accumulated, packed, mixture: right") for line in lines) == 1


class BaseTrainer(transformers.Trainer):
    """As TRL has had one, with other names."""


class SFTTrainer(BaseTrainer):
    """TRL's of 0.24 to 1.9, in what is of the loss: it reads figures off the model's output."""

    def __init__(
        self, model, args, formatting_func=None, compute_loss_func=None, *, data_collator, **kwargs
    ):
        super().__init__(model, args, data_collator, compute_loss_func=compute_loss_func, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs.pop("_prediction_loss_only", None)
        inputs["use_cache"] = False
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.figures = outputs.logits[..., :-1, :].softmax(-1)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, *args, **kwargs):
        inputs["_prediction_loss_only"] = prediction_loss_only
        return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)


@pytest.mark.parametrize("from_hidden", [False, True])
def test_the_mixin_with_an_sft_trainer_that_reads_outputs(from_hidden, tmp_path):
    class SmileFormer(SmileLossMixin, SFTTrainer):
        pass

    options = {"from_hidden": from_hidden, "eval_dataset": datasets.Dataset.from_list(rows())}
    trainer = make(SmileFormer, tmp_path, per_device_eval_batch_size=5, **UNEVEN, **options)
    expected = definition(llama(), rows(), MIXTURE)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected[0], rel=1e-6)
    check(trainer, expected)


def test_use_smile_with_an_sft_trainer_that_reads_logits(tmp_path):
    trainer = make(SFTTrainer, tmp_path, model=use_smile(llama(), MIXTURE), **UNEVEN)
    check(trainer, definition(llama(), rows(), MIXTURE))
    assert trainer.figures.shape[-1] == 24


def test_use_smile_is_refused_where_it_lacks_the_logits_that_are_read(tmp_path):
    trainer = make(SFTTrainer, tmp_path, model=use_smile(llama(), MIXTURE, from_hidden=True))
    with pytest.raises(
        ValueError, match=r"reads logits.*SmileLossMixin.*from_hidden=False"
    ) as error:
        trainer.train()
    assert "\n" not in str(error.value)


def test_use_smile_after_the_trainer_was_made_is_refused(tmp_path):
    """TRL from 1.15 on sets a forward that computes its own loss."""
    trainer = make(trl.SFTTrainer, tmp_path)
    use_smile(trainer.model, MIXTURE)
    with pytest.raises(ValueError, match=r"own loss \(fused_lm_head\).*SmileLossMixin") as error:
        trainer.train()
    assert "\n" not in str(error.value)


def test_a_loss_above_sft_trainers_is_refused(tmp_path):
    """In its first step: GKDTrainer's distils, and is a subclass of SFTTrainer."""

    class Distilling(trl.SFTTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = llama()(**{key: inputs[key] for key in ("input_ids", "labels")}).loss
            return (loss, {}) if return_outputs else loss

    class SmileDistilling(SmileLossMixin, Distilling):
        pass

    trainer = make(SmileDistilling, tmp_path)
    with pytest.raises(ValueError, match="the trained model does not have the trainer's"):
        trainer.train()


def test_trls_quick_start_is_told_of_assistant_only_loss(tmp_path):
    """`messages` and defaults: the user's words have labels, and each turn ends."""
    turns = [("assistant", caption) for caption in CAPTIONS[:2]]
    data = [{"messages": [{"role": role, "content": text} for role, text in turns]}]
    trainer = make(SmileSFTTrainer, tmp_path, data)
    with pytest.raises(
        ValueError, match=r"has the end token.*SFTConfig\(assistant_only_loss=True\)"
    ):
        trainer.train()


def test_zero_3_is_trained_from_logits(tmp_path):
    """DeepSpeed's parameters are imitated: empty, with the attributes that it gives them."""
    model = llama()
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id, parameter.ds_shape = number, parameter.shape
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    with pytest.warns(UserWarning, match="is trained from logits"):
        make(SmileSFTTrainer, tmp_path, model=model)
