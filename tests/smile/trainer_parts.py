"""What tests of trainers share: the trainers, tiny models, captions, and a step's definition."""

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import SmileLossMixin
from tests.smile.hf_steps import T5, each_alone, gradients, made, one_line

pytest.importorskip("accelerate", reason="Trainer needs accelerate, in the tests from Python 3.10")
trl = pytest.importorskip("trl", reason="TRL is in the tests from Python 3.11")
datasets = pytest.importorskip("datasets")

WORDS = "<pad> <s> </s> <unk> : user a the cat dog sits runs red blue ball on with small"
PAD = 0
# Of different lengths, with words that repeat.
CAPTIONS = [
    "the red cat sits on the red ball",
    "a dog runs",
    "a small dog runs with a red ball on a blue ball",
    "the cat sits",
    "a blue ball with a small cat on the blue ball",
]
LLAMA = {
    **{"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 64},
    **{"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2},
}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + ' </s>' }}{% endgeneration %}{{ ' ' }}"
    "{% else %}{{ 'user : ' + m.content + ' ' }}{% endif %}{% endfor %}"
)
MIXTURE = Objective({"mle": 0.3, "smile": 0.7}, label_smoothing=0.1)
UNEVEN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}  # of five rows
SINGLY = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 5}


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(WORDS.split())}
    word_level = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_level, chat_template=TEMPLATE, **special
    )


def ids(text):
    known = WORDS.split()
    return [known.index(word) for word in text.split()]


def llama(**config):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **config}))
    return model.double()


def t5():
    return made(T5).model


def mixtral():
    return made("MixtralForCausalLM").model


def rows():
    """Return rows of a data set: captions after a prompt that is not scored."""
    made = []
    for number, caption in enumerate(CAPTIONS):
        before, text = ids("user : a cat")[: 1 + number % 3], ids(caption + " </s>")
        made.append({"input_ids": before + text, "labels": [-100] * len(before) + text})
    return made


def data_set(data=None):
    return datasets.Dataset.from_list(rows() if data is None else data)


def expected(data=None, model=None, objective=MIXTURE):
    """Return loss and gradients of a step by definition; see `each_alone`."""
    return each_alone(model or llama(), rows() if data is None else data, objective)


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
KEYWORDS = {
    *("data_collator", "eval_dataset", "compute_metrics", "compute_loss_func", "peft_config"),
    "model_init",
}


def make(cls, folder, data=None, model=None, objective=MIXTURE, **options):
    """Return a trainer of one step on all rows. options: for the trainer or its configuration."""
    keywords = {key: options.pop(key) for key in KEYWORDS & options.keys()}
    model = llama() if model is None and "model_init" not in keywords else model
    if issubclass(cls, trl.SFTTrainer):
        keywords.setdefault("processing_class", tokenizer())
        arguments = trl.SFTConfig
        options.setdefault(RECOMPUTES, False)
    else:
        arguments = transformers.Seq2SeqTrainingArguments
        collator = transformers.DataCollatorForSeq2Seq(tokenizer(), model)
        keywords.setdefault("data_collator", collator)
    if issubclass(cls, SmileLossMixin) and objective is not None:
        keywords["objective"] = objective
    data = data_set(data)
    sizes = {f"per_device_{part}_batch_size": len(data) for part in ("train", "eval")}
    keywords.update(train_dataset=data, callbacks=[Gradients()])
    return cls(model, arguments(str(folder), **{**sizes, **QUIET, **options}), **keywords)


def check(trainer, data=None, router=0, **given):
    """Train a step, and assert that it has the loss and gradients of `expected`.

    router: the coefficient of Mixtral's router losses in a step in which each row is a batch.
    Returns what is logged.
    """
    loss, summed = expected(data, **given)
    if router:
        model, data = mixtral(), rows() if data is None else data
        words = [torch.tensor([row["input_ids"]]) for row in data]
        losses = [model(input_ids=x, attention_mask=torch.ones_like(x)).aux_loss for x in words]
        auxiliary = sum(losses) / len(data)
        (router * auxiliary).backward()
        summed.update({name: summed[name] + x for name, x in gradients(model).items()})
        loss += router * auxiliary.item()
    trainer.train()
    (seen,) = (x for x in trainer.callback_handler.callbacks if isinstance(x, Gradients))
    torch.testing.assert_close(seen.found, summed)
    (entry,) = (entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(loss, rel=1e-6)  # it is added up in float32
    if router and trainer.args.world_size == 1:  # a process logs its own
        assert entry["aux_loss"] == pytest.approx(auxiliary.item(), rel=1e-6)
    return entry


def refused_in_training(trainer, line):
    with one_line(line):
        trainer.train()
