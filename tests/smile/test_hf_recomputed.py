"""use_smile under what runs parts of a model again in backward, and under accelerate's hooks."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as torchs
from torch.utils.checkpoint import checkpoint

from smile.hf import use_smile
from tests.smile.hf_steps import (
    GPT2,
    T5,
    assert_trains,
    definition,
    from_logits_and_hidden,
    gradients,
    made,
    one_line,
)

LAYERS = ("GPT2Block", "T5Block")


def on_decoder(model, wrapper=torchs.checkpoint_wrapper):
    name = "transformer" if hasattr(model, "transformer") else "decoder"
    setattr(model, name, wrapper(getattr(model, name)))
    return model


def on_layers(model, wrapper=torchs.checkpoint_wrapper):
    torchs.apply_activation_checkpointing(
        model, wrapper, lambda module: type(module).__name__ in LAYERS
    )
    return model


def on_head(model):
    model.lm_head = torchs.checkpoint_wrapper(model.lm_head)
    return model


def reentrant(model):
    impl = torchs.CheckpointImpl.REENTRANT
    wrapper = functools.partial(torchs.checkpoint_wrapper, checkpoint_impl=impl)
    return on_layers(model, wrapper)


def hooked(model):
    hooks = pytest.importorskip("accelerate.hooks")
    decoder = model.transformer if hasattr(model, "transformer") else model.decoder
    hooks.add_hook_to_module(decoder, hooks.ModelHook())
    return model


def moved(model):
    accelerate = pytest.importorskip("accelerate")
    return accelerate.cpu_offload_with_hook(model, execution_device="cpu")[0]


def as_transformers_does(model):
    model.gradient_checkpointing_enable()
    return model


WAYS = [on_decoder, on_layers, reentrant, as_transformers_does, hooked, moved]


@pytest.mark.parametrize(("name", "from_hidden"), [(GPT2, False), (GPT2, True), (T5, True)])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_run_again_is_trained(name, from_hidden, way):
    assert_trains(name, use_smile(way(made(name).model), from_hidden=from_hidden))
    model = way(use_smile(made(name).model, from_hidden=from_hidden))
    for _ in range(2):
        assert_trains(name, model)


def test_a_head_that_is_run_again():
    assert_trains(GPT2, on_head(use_smile(made(GPT2).model)))
    assert_trains(GPT2, use_smile(on_head(made(GPT2).model)))
    with pytest.warns(UserWarning, match="is trained from logits"):
        assert_trains(GPT2, use_smile(on_head(made(GPT2).model), from_hidden=True))


def test_backward_in_a_thread_of_its_own():
    """As of a GPU, for which autograd has one."""
    model = on_decoder(use_smile(made(GPT2).model))
    loss = model(**made(GPT2).batch).loss
    with ThreadPoolExecutor(1) as threads:
        threads.submit(loss.backward).result()
    torch.testing.assert_close(gradients(model), definition(GPT2)[1])


@from_logits_and_hidden
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_whole_step_that_is_run_again(from_hidden, reentrant):
    model = use_smile(made(GPT2).model, from_hidden=from_hidden)
    batch = dict(made(GPT2).batch)
    words = model.transformer.wte(batch.pop("input_ids"))
    loss = checkpoint(
        lambda words: model(inputs_embeds=words, **batch).loss, words, use_reentrant=reentrant
    )
    loss.backward()
    expected, expected_gradients = definition(GPT2)
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(gradients(model), expected_gradients)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_step_past_the_objective_that_is_run_again_is_refused(reentrant):
    """The first run of a reentrant one has no gradient, and is not refused."""
    model = use_smile(made(GPT2).model)
    model(**made(GPT2).batch).loss.backward()  # which allows what is run again in it alone
    own = type(model)._without_smile.forward
    words = model.transformer.wte(made(GPT2).batch["input_ids"])
    with one_line("GPT2Model was run outside of its model's forward"):
        logits = checkpoint(
            lambda words: own(model, inputs_embeds=words).logits, words, use_reentrant=reentrant
        )
        logits.square().mean().backward()
