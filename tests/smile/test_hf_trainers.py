"""SmileLossMixin: one step of each trainer is the definition's, with all that the trainer does."""


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
peft = pytest.importorskip("peft")

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


STEPS = {
    "padded": {},
    "packed": {"packing": True, "max_length": 64},
    "packed in several rows": {"packing": True, "max_length": 20},
    "padding-free": {"padding_free": True, "max_length": None},
    "accumulated": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 5},
    "accumulated in uneven parts": {
        **{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3},
    },
    "packed and accumulated": {
        **{"packing": True, "max_length": 20},
        **{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 10},
    },
    "recomputed": {"activation_checkpointing": True},
}


@each_objective
@pytest.mark.parametrize("from_hidden", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_sft(objective, from_hidden, step, tmp_path):
    options = {"activation_checkpointing": False, **STEPS[step]}
    expected = definition(llama(), rows(), objective)
    trainer = trained(
        SmileSFTTrainer, llama(), tmp_path, rows(), objective, from_hidden=from_hidden, **options
    )
    check(trainer, expected)
    assert logged(trainer, "num_tokens") == sum(len(row["input_ids"]) for row in rows())


def test_eager_attention_keeps_packed_captions_apart_too(tmp_path):
    model = llama(attn_implementation="eager")
    expected = definition(model, rows(), MIXTURE)
    check(trained(SmileSFTTrainer, model, tmp_path, rows(), **STEPS["packed"]), expected)


PACKED = pytest.mark.parametrize("packing", [{}, STEPS["packed"]], ids=["padded", "packed"])


@PACKED
def test_completions_alone_are_scored(packing, tmp_path):
    data = [{"prompt": "user : a cat", "completion": " " + caption} for caption in CAPTIONS]
    asked = ids("user : a cat")
    said = [ids(caption + " </s>") for caption in CAPTIONS]
    expected = [{"input_ids": asked + x, "labels": [-100] * len(asked) + x} for x in said]
    expected = definition(llama(), expected, MIXTURE)
    check(trained(SmileSFTTrainer, llama(), tmp_path, data, **packing), expected)


@PACKED
def test_each_turn_of_an_assistant_is_a_caption(packing, tmp_path):
    """Two turns in a conversation: the words of one are not in the subset of the other."""
    data, expected = [], []
    for one, other in zip(CAPTIONS, CAPTIONS[1:]):
        turns = [("user", "a cat"), ("assistant", one), ("user", "dog"), ("assistant", other)]
        data.append({"messages": [{"role": role, "content": text} for role, text in turns]})
        first, second = ids(f"{one} </s>"), ids(f"{other} </s>")
        asked, again = ids("user : a cat"), ids("user : dog")
        whole = [*asked, *first, *again, *second]
        for turn, before in ((first, asked), (second, [*asked, *first, *again])):
            labels = [-100] * len(before) + turn
            labels += [-100] * (len(whole) - len(labels))
            expected.append({"input_ids": whole, "labels": labels})
    expected = definition(llama(), expected, MIXTURE)
    packing = {**packing, "max_length": 128}
    trainer = trained(SmileSFTTrainer, llama(), tmp_path, data, assistant_only_loss=True, **packing)
    check(trainer, expected)


def with_adapters(config):
    model = llama()
    torch.manual_seed(42)  # SFTTrainer's, as it makes them
    return peft.get_peft_model(model, config)


@PACKED
def test_adapters(packing, tmp_path):
    """peft_config= of SFTTrainer: adapters alone have gradients, and those of the definition."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    trainer = trained(
        SmileSFTTrainer, llama(), tmp_path, rows(), peft_config=config, max_steps=1, **packing
    )
    expected = definition(with_adapters(config), rows(), MIXTURE)
    assert expected[1] and all("lora_" in name for name in expected[1])
    check(trainer, expected)


def test_a_prompt_that_is_learnt(tmp_path):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    trainer = trained(SmileSFTTrainer, llama(), tmp_path, rows(), peft_config=config)
    model = with_adapters(config)
    (name, prompt) = next((k, v) for k, v in model.named_parameters() if v.requires_grad)
    base, total, tokens = model.get_base_model().train(), 0.0, 0
    for row in rows():
        words = base.get_input_embeddings()(torch.tensor([row["input_ids"]]))
        logits = base(inputs_embeds=torch.cat([prompt[None].double(), words], 1)).logits
        result = MIXTURE(logits[:, 3:-1], torch.tensor([row["labels"][1:]]))
        total, tokens = total + result.loss * result.tokens, tokens + result.tokens
    (total / tokens).backward()
    assert logged(trainer) == pytest.approx((total / tokens).item(), rel=1e-6)
    torch.testing.assert_close(trainer.found, {name: prompt.grad}, check_dtype=False)


MODELS = {"decoder": llama, "encoder and decoder": t5}


@each_objective
@pytest.mark.parametrize("cls", [SmileTrainer, SmileSeq2SeqTrainer])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("step", ["padded", "accumulated in uneven parts"])
def test_a_step_of_transformers_trainers(objective, cls, make, step, tmp_path):
    expected = definition(make(), rows(), objective)
    check(trained(cls, make(), tmp_path, rows(), objective, **STEPS[step]), expected)


def test_a_packed_step_of_trainer(tmp_path):
    """With the collator of transformers that flattens a batch."""
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    expected = definition(llama(), rows(), MIXTURE)
    trainer = trained(SmileTrainer, llama(), tmp_path, rows(), data_collator=collate)
    check(trainer, expected)
