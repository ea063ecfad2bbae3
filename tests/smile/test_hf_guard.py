"""What goes past the objective after use_smile ends in the first step, with one line."""

import copy
import inspect
import types
import weakref

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import last_parts, undo, use_smile
from tests.smile import hf_models
from tests.smile.hf_steps import BOTH_KINDS, GPT2, LLAMA, assert_trains, definition, gradients, made

both_kinds = pytest.mark.parametrize("name", BOTH_KINDS)
needs_llama = pytest.mark.skipif(LLAMA not in hf_models.HERE, reason="transformers has no Llama")


def by_its_class(model):
    type(model).forward = transformers.GPT2LMHeadModel.forward
    return model(**made(GPT2).batch).loss


def by_another_class(model):
    model.__class__ = transformers.GPT2LMHeadModel
    return model(**made(GPT2).batch).loss


def by_its_parts(model):
    return model.lm_head(model.transformer(made(GPT2).batch["input_ids"])[0]).sum()


def by_its_base(model):
    return model.base_model(made(GPT2).batch["input_ids"])[0].sum()


def by_its_head(model):
    model.transformer.eval()
    return by_its_parts(model)


def by_its_class_above_a_frozen_decoder(model):
    model.transformer.eval()
    return by_its_class(model)


def by_another_loss(model):
    batch = dict(made(GPT2).batch)
    return torch.nn.functional.cross_entropy(
        model(input_ids=batch["input_ids"]).logits.flatten(0, 1), batch["labels"].flatten()
    )


@pytest.mark.parametrize(
    "past, line",
    [
        (by_its_class, "its decoder was run outside of its forward"),
        (by_another_class, "its decoder was run outside of its forward"),
        (by_its_parts, "its decoder was run outside of its forward"),
        (by_its_base, "its decoder was run outside of its forward"),
        (by_its_head, "its language head was run outside of its forward"),
        (by_its_class_above_a_frozen_decoder, "its language head was run outside of its forward"),
        (by_another_loss, "is trained without labels"),
    ],
)
def test_what_goes_past_the_objective_ends_in_one_line(past, line):
    model = use_smile(made(GPT2).model)
    with pytest.raises(ValueError, match=f"GPT2LMHeadModel.*{line}.*undo") as error:
        past(model)
    assert "\n" not in str(error.value)
    if past not in (by_its_class, by_another_class, by_its_class_above_a_frozen_decoder):
        past(model.eval())
        with torch.no_grad():
            past(model.train())
        past(undo(model)).backward()


def test_a_subclass_that_calls_the_forward_trains():
    model = use_smile(made(GPT2).model)

    class Sub(type(model)):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    model.__class__ = Sub
    assert_trains(GPT2, model)


@both_kinds
def test_another_loss_of_the_outputs_states_has_no_gradient(name):
    family = made(name)
    model = use_smile(family.model)
    output = model(**family.batch, output_hidden_states=True)
    states = "hidden_states" if family.shift else "decoder_hidden_states"
    for state in (output.logits, output[states][-1]):
        with pytest.raises(ValueError, match="a loss was made of its logits or hidden states"):
            state.square().mean().backward(retain_graph=True)
    other = model(**family.batch, output_hidden_states=True)
    model.zero_grad()
    (other.logits.square().mean() + other[states][0].sum() + other.loss).backward()
    both = gradients(model)
    model.zero_grad()
    undo(model)
    plain = model(**family.batch, output_hidden_states=True)
    (plain.logits.square().mean() + plain[states][0].sum()).backward()
    for key, expected in definition(name)[1].items():
        torch.testing.assert_close(both[key] - gradients(model)[key], expected, msg=key)


def test_a_gradient_that_is_refused_keeps_no_output():
    family = made(GPT2)
    model, kept = use_smile(family.model), []
    output = model(**family.batch)
    kept.append(weakref.ref(output.logits))
    del output
    assert kept[0]() is None


@pytest.mark.parametrize(
    "returned, line",
    [
        (lambda output: output.logits, "returns no logits"),
        (lambda output: {"logits": output.logits[:, -1]}, "returns no logits"),
        (lambda output: {"loss": output.logits.sum()}, "returns no logits"),
    ],
)
def test_a_forward_without_usable_logits(returned, line):
    family = made(GPT2)
    model = use_smile(family.model)
    before = model.forward
    model.forward = lambda *args, **kwargs: returned(before(*args, **kwargs))
    with pytest.raises(ValueError, match=line):
        model(**family.batch)


def test_a_forward_that_computes_logits_of_its_own_has_none_from_hidden_states():
    family = made(GPT2)
    model = use_smile(family.model, from_hidden=True)

    def forward(self, input_ids, **kwargs):
        hidden = self.transformer(input_ids)[0]
        logits = hidden @ self.lm_head.weight.T
        return transformers.modeling_outputs.CausalLMOutputWithCrossAttentions(logits=logits)

    model.forward = types.MethodType(forward, model)
    with pytest.raises(ValueError, match=r"does not call its language head.*from_hidden=False"):
        model(**family.batch)
    batch = {key: family.batch[key] for key in ("input_ids", "labels")}
    unmasked = use_smile(made(GPT2).model)(**batch).loss
    torch.testing.assert_close(use_smile(model)(**batch).loss, unmasked)


@needs_llama
def test_sft_trainer_of_trl_ends_in_its_first_step(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    rows = {"input_ids": [[5, 6, 7]] * 2, "labels": [[5, 6, 7]] * 2}
    arguments = trl.SFTConfig(
        str(tmp_path), report_to=[], use_cpu=True, bf16=False, max_steps=1, save_strategy="no"
    )
    trainer = trl.SFTTrainer(
        use_smile(made(LLAMA).model.float()),
        arguments,
        train_dataset=datasets.Dataset.from_dict(rows),
        processing_class=transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="<unk>", eos_token="<unk>"
        ),
    )
    with pytest.raises(ValueError, match="a trainer of TRL asks for a loss of its own") as error:
        trainer.train()
    assert "\n" not in str(error.value)


NEW_TRAINER = "compute_loss_func" in inspect.signature(transformers.Trainer).parameters


@pytest.mark.parametrize("way", ["label_smoothing_factor", "compute_loss_func"])
def test_a_loss_of_the_trainers_ends_in_its_first_step(way, tmp_path):
    if not NEW_TRAINER and way == "compute_loss_func":
        pytest.skip("Trainer takes no loss function")
    family = made(GPT2)
    rows = [{key: value[row] for key, value in family.batch.items()} for row in range(3)]
    options = {"label_smoothing_factor": 0.1} if way == "label_smoothing_factor" else {}
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, report_to=[], save_strategy="no", **options
    )
    loss = {"compute_loss_func": lambda *_, **__: 0} if way == "compute_loss_func" else {}
    trainer = transformers.Trainer(
        use_smile(family.model.float()), arguments, train_dataset=rows, **loss
    )
    with pytest.raises(ValueError, match=r"is trained without labels.*SmileLossMixin"):
        trainer.train()


def test_generation_in_training_is_as_before():
    family = made(GPT2)
    ids = family.batch["input_ids"][:, :3]
    expected = copy.deepcopy(family.model).generate(ids, max_length=6, do_sample=False)
    found = use_smile(family.model).generate(ids, max_length=6, do_sample=False)
    assert family.model.training and found.equal(expected)


@both_kinds
def test_parts_of_the_last_step(name):
    family = made(name)
    model = use_smile(family.model, Objective({"mle": 0.3, "smile": 0.7}, label_smoothing=0.1))
    assert last_parts(model) == {}
    loss = model(**family.batch, num_items_in_batch=5).loss
    parts = last_parts(model)
    torch.testing.assert_close(parts["smile"], definition(name)[0])
    tokens = (family.batch["labels"][:, family.shift :] != -100).sum()
    torch.testing.assert_close(
        (0.3 * parts["mle"] + 0.7 * parts["smile"]) * tokens / 5, loss.detach()
    )
    assert not any(part.requires_grad for part in parts.values())
    with pytest.raises(ValueError, match="call use_smile"):
        last_parts(undo(model))


@both_kinds
def test_keep_logits_says_what_the_loss_is_made_of(name):
    family = made(name)
    model, expected = use_smile(family.model), definition(name)[0]
    for training in (True, False):
        for from_hidden in (True, False):
            use_smile(model, from_hidden=from_hidden).train(training)
            without = model(**family.batch, keep_logits=False)
            kept = model(**family.batch, keep_logits=True)
            assert without.logits is None and kept.logits is not None
            torch.testing.assert_close(without.loss.detach(), expected)
            torch.testing.assert_close(kept.loss.detach(), expected)
