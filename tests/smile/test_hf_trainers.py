"""SmileLossMixin: one step of each trainer is the definition's, with all that the trainer does."""

import functools

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import SmileLossMixin
from tests.smile.trainer_parts import (
    CAPTIONS,
    Gradients,
    definition,
    ids,
    llama,
    rows,
    settings,
    t5,
    tokenizer,
)

pytest.importorskip("accelerate", reason="Trainer needs accelerate, in the tests from Python 3.10")
trl = pytest.importorskip("trl", reason="TRL is in the tests from Python 3.11")
datasets = pytest.importorskip("datasets")

MIXTURE = Objective({"mle": 0.3, "smile": 0.7}, label_smoothing=0.1)
OBJECTIVES = {
    "smile": Objective("smile"),
    "mixture": MIXTURE,
    "reverse without first-token MLE": Objective("reverse", first_token_mle=False),
}
each_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())


class SmileTrainer(SmileLossMixin, transformers.Trainer):
    pass


class SmileSeq2SeqTrainer(SmileLossMixin, transformers.Seq2SeqTrainer):
    pass


class SmileSFTTrainer(SmileLossMixin, trl.SFTTrainer):
    pass


def trained(cls, model, folder, data, objective=MIXTURE, **options):
    """The trainer after its steps, with `.found`, the last step's gradients."""
    keywords = {"data_collator", "eval_dataset", "peft_config", "compute_metrics", "from_hidden"}
    given = {key: options.pop(key) for key in keywords & options.keys()}
    if cls is SmileSFTTrainer:
        given["processing_class"], arguments = tokenizer(), trl.SFTConfig
    else:
        arguments = transformers.Seq2SeqTrainingArguments
        collate = transformers.DataCollatorForSeq2Seq(tokenizer(), model)
        given.setdefault("data_collator", collate)
    kept = Gradients()
    arguments = settings(arguments, folder, **options)
    trainer = cls(
        model,
        arguments,
        train_dataset=datasets.Dataset.from_list(data),
        objective=objective,
        callbacks=[kept],
        **given,
    )
    trainer.train()
    trainer.found = kept.found
    return trainer


def logged(trainer, name="loss"):
    (value,) = (entry[name] for entry in trainer.state.log_history if name in entry)
    return value


def check(trainer, expected):
    loss, gradients = expected
    assert logged(trainer) == pytest.approx(loss, rel=1e-6)  # it is added up in float32
    torch.testing.assert_close(trainer.found, gradients)


ONE_ROW = {"packing": True, "max_length": 64}  # all captions fit into it
WAYS = {
    "padded": {},
    "packed": ONE_ROW,
    "packed in several rows": {"packing": True, "max_length": 20},
    "padding-free": {"padding_free": True, "max_length": None},
    "accumulated": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 5},
    "accumulated unevenly": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3},
    "with eager attention": {"packing": True, "max_length": 64},
    "recomputed": {"activation_checkpointing": True},
    "offloaded": {"activation_offloading": True},
}


@each_objective
@pytest.mark.parametrize("from_hidden", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_sft(objective, from_hidden, way, tmp_path):
    model = llama(attn_implementation="eager") if "eager" in way else llama()
    expected = definition(model, rows(), objective)
    options = {"activation_checkpointing": False, **WAYS[way]}
    trainer = trained(
        SmileSFTTrainer, model, tmp_path, rows(), objective, from_hidden=from_hidden, **options
    )
    check(trainer, expected)
