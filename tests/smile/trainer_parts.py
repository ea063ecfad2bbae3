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

WORDS = "<pad> <s> </s> <unk> : user a the cat dog sits runs red blue ball on with small <image>"
PAD, IMAGE = 0, 18
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


def rows(prompt="user : a cat"):
    """Return rows of a data set: captions after a prompt that is not scored."""
    made = []
    for number, caption in enumerate(CAPTIONS):
        before, text = ids(prompt)[: 1 + number % 3], ids(caption + " </s>")
        made.append({"input_ids": before + text, "labels": [-100] * len(before) + text})
    return made


MIXTURE = Objective({"mle": 0.3, "smile": 0.7}, label_smoothing=0.1)


def data_set(data=None):
    return datasets.Dataset.from_list(rows() if data is None else data)


def expected(data=None, model=None, objective=MIXTURE):
    """Return loss and gradients of a step by definition; see `each_alone`."""
    return each_alone(model or llama(), rows() if data is None else data, objective)


def mixtral():
    return made("MixtralForCausalLM").model


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
RECOMPUTES = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in transformers.TrainingArguments.__dataclass_fields__
)
TRAINER_KEYWORDS = {
    *("data_collator", "eval_dataset", "compute_metrics", "compute_loss_func", "model_init"),
    *("from_hidden", "peft_config", "processing_class"),
}


def make(cls, folder, data=None, model=None, objective=MIXTURE, **options):
    """Return a trainer of one step on all rows. options: for the trainer or its configuration."""
    keywords = {key: options.pop(key) for key in TRAINER_KEYWORDS & options.keys()}
    model = llama() if model is None and "model_init" not in keywords else model
    if issubclass(cls, trl.SFTTrainer):
        keywords.setdefault("processing_class", tokenizer())
        arguments = trl.SFTConfig
        options.setdefault(RECOMPUTES, False)
    else:
        arguments = transformers.Seq2SeqTrainingArguments
        keywords.setdefault(
            "data_collator", transformers.DataCollatorForSeq2Seq(tokenizer(), model)
        )
    data = data_set(data)
    sizes = {f"per_device_{part}_batch_size": len(data) for part in ("train", "eval")}
    options = {**sizes, **QUIET, **options}
    if issubclass(cls, SmileLossMixin):
        keywords["objective"] = objective
    keywords.update(train_dataset=data, callbacks=[Gradients()])
    return cls(model, arguments(str(folder), **options), **keywords)


PROMPT, TEXT = {"prompt": "user : a cat"}, " the cat sits"
EXAMPLES = {
    "SFT": [{**PROMPT, "completion": TEXT}] * 2,
    "DPO": [{**PROMPT, "chosen": TEXT, "rejected": " a dog runs"}] * 2,
    "KTO": [{**PROMPT, "completion": TEXT, "label": wanted} for wanted in (True, False)],
    "GRPO": [PROMPT] * 2,
    "RLOO": [PROMPT] * 2,
}


def make_trl_trainer(kind, folder, model, **options):
    keywords = {}
    if kind in ("GRPO", "RLOO"):
        keywords["reward_funcs"] = lambda completions, **_: [float(len(x)) for x in completions]
        options.update(num_generations=2, max_completion_length=4)
    arguments = getattr(trl, f"{kind}Config")(
        str(folder), per_device_train_batch_size=2, gradient_checkpointing=False, **QUIET, **options
    )
    keywords.update(train_dataset=data_set(EXAMPLES[kind]), processing_class=tokenizer())
    return getattr(trl, f"{kind}Trainer")(model, args=arguments, **keywords)


def logs(trainer, name="loss"):
    return [entry for entry in trainer.state.log_history if name in entry]


def step_gradients(trainer):
    return next(c.found for c in trainer.callback_handler.callbacks if isinstance(c, Gradients))


def check(trainer, data=None, **given):
    """Train a step, and assert that it has the loss and gradients of `expected`."""
    loss, gradients = expected(data, **given)
    check_step(trainer, gradients, loss=loss)


def check_routers(trainer, data, coefficient):
    """Like `check`, for `mixtral` in a step in which each row is a batch."""
    model = mixtral().train()
    loss, summed = expected(data, model)
    words = [torch.tensor([row["input_ids"]]) for row in data]
    losses = [model(input_ids=x, attention_mask=torch.ones_like(x)).aux_loss for x in words]
    auxiliary = sum(losses) / len(data)
    (coefficient * auxiliary).backward()
    summed.update({name: summed[name] + x for name, x in gradients(model).items()})
    auxiliary = auxiliary.item()
    check_step(trainer, summed, loss=loss + coefficient * auxiliary, aux_loss=auxiliary)


def check_step(trainer, gradients, **logged):
    trainer.train()
    torch.testing.assert_close(step_gradients(trainer), gradients)
    if trainer.is_world_process_zero():
        (entry,) = logs(trainer)
        for name, value in logged.items():
            assert entry[name] == pytest.approx(value, rel=1e-6)  # it is added up in float32


def refused_in_training(trainer, line):
    with one_line(line):
        trainer.train()
