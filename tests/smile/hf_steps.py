"""A step of a tiny model in training, and what its loss and gradients are by definition."""

import contextlib
import copy
import functools
import re

import pytest
import torch

from smile import Objective
from tests.smile import hf_models

GPT2, T5 = BOTH_KINDS = ["GPT2LMHeadModel", "T5ForConditionalGeneration"]
LLAMA, LLAVA = "LlamaForCausalLM", "LlavaForConditionalGeneration"


def made(name):
    """Return the family in training mode, with fixed weights and without dropout."""
    torch.manual_seed(0)
    family = hf_models.make(name)
    family.model.train()
    for module in family.model.modules():
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return family


def gradients(model):
    """Return gradients by parameter name, without the prefixes of torch's wrappers."""
    found = {}
    for name, parameter in model.named_parameters():
        name = re.sub(r"_checkpoint_wrapped_module\.|_orig_mod\.|^module\.", "", name)
        if (gradient := parameter.grad) is not None:
            sharded = hasattr(gradient, "full_tensor")
            found[name] = gradient.full_tensor() if sharded else gradient.clone()
    return found


@functools.cache
def definition(name):
    """Return SMILE's loss and gradients, from the logits of the unchanged model."""
    family = made(name)
    batch = dict(family.batch)
    labels = batch.pop("labels")
    if family.shift:
        logits, labels = family.model(**batch).logits[:, :-1], labels[:, 1:]
    else:
        batch["decoder_input_ids"] = family.model.prepare_decoder_input_ids_from_labels(labels)
        logits = family.model(**batch).logits
    loss = Objective("smile")(logits, labels).loss
    loss.backward()
    return loss.detach(), gradients(family.model)


def each_alone(model, rows, objective):
    """Return loss and gradients of a step on the rows, each computed alone and unpadded.

    A row has the model's inputs, labels and optional weights: lists, or tensors (1, N).
    """
    model, total, tokens = copy.deepcopy(model).train(), 0.0, 0
    for row in rows:
        row = {k: v if torch.is_tensor(v) else torch.tensor([v]) for k, v in row.items()}
        labels, weights = row.pop("labels"), row.pop("weights", None)
        if model.config.is_encoder_decoder:
            row["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
            result = objective(model(**row).logits, labels)
        else:
            weights = None if weights is None else weights[:, 1:].double()
            logits = model(**row, use_cache=False).logits
            result = objective(logits[:, :-1], labels[:, 1:], weights=weights)
        total, tokens = total + result.loss * result.tokens, tokens + result.tokens
    loss = total / (tokens if tokens > 0 else 1)
    loss.backward()
    return loss.item(), gradients(model)


def assert_trains(name, model, tolerance=1e-9):
    """Assert that a step on the family's batch has the loss and gradients of `definition`."""
    model.zero_grad()
    loss = model(**made(name).batch).loss
    loss.backward()
    found = loss.detach().double(), {key: x.double() for key, x in gradients(model).items()}
    torch.testing.assert_close(found, definition(name), atol=tolerance, rtol=0)


def needs(name):
    return pytest.mark.skipif(name not in hf_models.HERE, reason=f"transformers has no {name}")


@contextlib.contextmanager
def one_line(match):
    with pytest.raises(ValueError, match=match) as error:
        yield
    assert "\n" not in str(error.value)
