"""What tests of trainers share: the trainers, captions, and a step's definition."""

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import SmileLossMixin
from tests.smile.families import batches
from tests.smile.hf_steps import LLAMA, each_alone, gradients, made

pytest.importorskip("accelerate", reason="Trainer needs accelerate, in the tests from Python 3.10")
trl = pytest.importorskip("trl", reason="TRL is in the tests from Python 3.11")
datasets = pytest.importorskip("datasets")

PROMPT = "user describe the image"
# Of different lengths, with words that repeat.
CAPTIONS = [
    "the red star above the red ring",
    "a disc right",
    "a small disc right of a red block on a blue block",
    "the star left",
    "a blue block of a small star on the blue block",
]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + ' <end>' }}{% endgeneration %}{{ ' ' }}"
    "{% else %}{{ 'user ' + m.content + ' ' }}{% endif %}{% endfor %}"
)
MIXTURE = Objective({"mle": 0.3, "smile": 0.7}, label_smoothing=0.1)
UNEVEN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}  # of five rows
SINGLY = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 5}


def tokenizer():
    known = batches.tokenizer()
    known.chat_template = TEMPLATE
    return known


def ids(text):
    return tokenizer().convert_tokens_to_ids(text.split())


def llama():
    return made(LLAMA).model


def row_of(before, text):
    """Return a row of a data set in which `before` is not scored. Both are ids."""
    return {"input_ids": before + text, "labels": [-100] * len(before) + text}


def rows():
    """Return the captions, each after one to three tokens of a prompt."""
    asked = ids(PROMPT)
    return [row_of(asked[: 1 + n % 3], ids(f"{text} <end>")) for n, text in enumerate(CAPTIONS)]


def data_set(data=None):
    return datasets.Dataset.from_list(rows() if data is None else data)


def expected(data=None, model=None, objective=MIXTURE, router=0):
    """Return loss and gradients of a step by definition; see `each_alone`."""
    return each_alone(model or llama(), rows() if data is None else data, objective, router)


class SmileTrainer(SmileLossMixin, transformers.Trainer):
    pass


class SmileSeq2SeqTrainer(SmileLossMixin, transformers.Seq2SeqTrainer):
    pass


class SmileSFTTrainer(SmileLossMixin, trl.SFTTrainer):
    pass


class Gradients(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, arguments, state, control, model=None, **kwargs):
        self.found = gradients(model)


QUIET = {
    **{"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True},
    **{"max_grad_norm": 0, "bf16": False, "max_steps": 1, "logging_steps": 1},
}
# TRL's is on by default; its name before transformers 5.21.
NAMES = ("activation_checkpointing", "gradient_checkpointing")
RECOMPUTES = next(x for x in NAMES if x in transformers.TrainingArguments.__dataclass_fields__)


def make(cls, folder, data=None, model=None, objective=MIXTURE, **options):
    """Return a trainer of one step on all rows. options: for the trainer or its configuration."""
    model = llama() if model is None and "model_init" not in options else model
    data = data_set(data)
    sizes = {f"per_device_{part}_batch_size": len(data) for part in ("train", "eval")}
    options = {**sizes, **QUIET, **options}
    if issubclass(cls, trl.SFTTrainer):
        arguments = trl.SFTConfig
        options = {"processing_class": tokenizer(), RECOMPUTES: False, **options}
    else:
        arguments = transformers.Seq2SeqTrainingArguments
        collator = transformers.DataCollatorForSeq2Seq(tokenizer(), model)
        options = {"data_collator": collator, **options}
    if issubclass(cls, SmileLossMixin) and objective is not None:
        options["objective"] = objective
    names = options.keys() & arguments.__dataclass_fields__.keys()
    arguments = arguments(str(folder), **{name: options.pop(name) for name in names})
    return cls(model, arguments, train_dataset=data, callbacks=[Gradients()], **options)


def check(trainer, data=None, router=0, **given):
    """Train a step, and assert that it has the loss and gradients of `expected`.

    router: the coefficient of Mixtral's router losses in a step in which each row is a batch.
    Returns what is logged.
    """
    loss, summed = expected(data, router=router, **given)
    trainer.train()
    (seen,) = (x for x in trainer.callback_handler.callbacks if isinstance(x, Gradients))
    torch.testing.assert_close(seen.found, summed)
    (entry,) = (entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(loss, rel=1e-6)  # it is added up in float32
    if router and trainer.args.world_size == 1:  # a process logs its own
        auxiliary = (loss - expected(data, **given)[0]) / router
        assert entry["aux_loss"] == pytest.approx(auxiliary, rel=1e-5)
    return entry
