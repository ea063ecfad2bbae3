"""What would train another loss than that of use_smile ends in its first step, with one line."""

import copy
import types

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import last_parts, undo, use_smile
from tests.smile.hf_steps import BOTH_KINDS, GPT2, definition, gradients, made, one_line

both_kinds = pytest.mark.parametrize("name", BOTH_KINDS)
OUTSIDE = "was run outside of its model's forward"
OWN = transformers.GPT2LMHeadModel.forward


@pytest.mark.parametrize("set_forward", [False, True])
def test_a_forward_without_the_objective_ends_in_one_line(set_forward):
    model = use_smile(made(GPT2).model)
    if set_forward:
        model.forward = types.MethodType(OWN, model)
    else:
        type(model).forward = OWN
    with one_line(f"Model {OUTSIDE}.*SmileLossMixin.*undo"):
        model(**made(GPT2).batch)


def by_its_parts(model, ids):
    return model.lm_head(model.transformer(ids)[0]).sum()


def by_its_head(model, ids):
    model.transformer.eval()
    return by_its_parts(model, ids)


def by_another_loss(model, ids):
    return model(input_ids=ids).logits.square().sum()


@pytest.mark.parametrize(
    "past, line",
    [
        (by_its_parts, f"Model {OUTSIDE}"),
        (by_its_head, f"Linear {OUTSIDE}"),
        (by_another_loss, "is trained without labels"),
    ],
)
def test_another_loss_ends_in_one_line(past, line):
    family = made(GPT2)
    model, ids = use_smile(family.model), family.batch["input_ids"]
    with one_line(f"{line}.*SmileLossMixin.*undo"):
        past(model, ids)
    past(model.eval(), ids)
    with torch.no_grad():
        past(model.train(), ids)
    past(undo(model), ids).backward()


@both_kinds
def test_another_loss_of_the_outputs_states_has_no_gradient(name):
    family = made(name)
    model = use_smile(family.model)
    output = model(**family.batch, output_hidden_states=True)
    states = "hidden_states" if family.shift else "decoder_hidden_states"
    for state in (output.logits, output[states][-1]):
        with one_line("another loss was computed from its logits or hidden states"):
            state.square().mean().backward(retain_graph=True)

    def backward(own_share):
        model.zero_grad()
        output = model(**family.batch, output_hidden_states=True)
        other = output.logits.square().mean() + output[states][0].sum()
        (other + own_share * output.loss).backward()
        return gradients(model)

    both, _ = backward(1), undo(model)
    other = backward(0)
    for key, expected in definition(name)[1].items():
        torch.testing.assert_close(both[key] - other[key], expected, msg=key)


def setting(forward):
    family = made(GPT2)
    own = family.model.forward
    family.model.forward = lambda *args, **kwargs: forward(family.model, own, *args, **kwargs)
    return family


@pytest.mark.parametrize(
    "returned",
    [
        lambda output: output.logits,
        lambda output: {"logits": output.logits[:, -1]},
        lambda output: {"loss": output.logits.sum()},
    ],
)
def test_a_forward_without_usable_logits(returned):
    family = setting(lambda model, own, *args, **kwargs: returned(own(*args, **kwargs)))
    with one_line("returns no logits"):
        use_smile(family.model)(**family.batch)


def test_a_forward_that_computes_logits_itself_has_none_from_hidden_states():
    def forward(model, own, input_ids, **kwargs):
        hidden = model.transformer(input_ids)[0]
        logits = hidden @ model.lm_head.weight.T
        return transformers.modeling_outputs.CausalLMOutputWithCrossAttentions(logits=logits)

    family = setting(forward)
    batch = {key: family.batch[key] for key in ("input_ids", "labels")}
    with one_line(r"does not call its language head.*from_hidden=False"):
        use_smile(family.model, from_hidden=True)(**batch)
    unmasked = use_smile(made(GPT2).model)(**batch).loss
    torch.testing.assert_close(use_smile(family.model)(**batch).loss, unmasked)


def test_generation_in_training_is_as_before():
    family = made(GPT2)
    ids = family.batch["input_ids"][:, :3]
    expected = copy.deepcopy(family.model).generate(ids, max_length=6, do_sample=False)
    found = use_smile(family.model).generate(ids, max_length=6, do_sample=False)
    assert family.model.training and found.equal(expected)


@both_kinds
def test_the_parts_of_the_last_step_sum_up_to_its_loss(name):
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
    with one_line("call use_smile"):
        last_parts(undo(model))


@both_kinds
def test_keep_logits_overrides_from_hidden(name):
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
