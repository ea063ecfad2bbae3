"""A step of a tiny model in training, and what its loss and gradients are by definition."""

import copy
import functools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

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


def step(model, **batch):
    """Return the loss and gradients of a step. Autograd has a thread for each GPU, as here."""
    model.zero_grad()
    loss = model(**batch).loss
    with ThreadPoolExecutor(1) as threads:
        threads.submit(loss.backward).result()
    return loss.detach(), gradients(model)


def predictions(family, logits):
    """Return logits and labels, aligned."""
    logits, labels = logits[:, family.before :], family.batch["labels"]
    return (logits[:, :-1], labels[:, 1:]) if family.shift else (logits, labels)


def formula(family, objective, items=None, weights=None):
    """Return the loss and its gradients, by name, of the unchanged model.

    The loss is the objective's sum over tokens divided by `items`, by default by the tokens, plus
    what the model adds to the cross-entropy of its labels, such as router losses.
    """
    family.model.zero_grad()
    own = family.model(**family.batch)
    logits, labels = predictions(family, own.logits)
    if weights is not None and family.shift:
        weights = weights[:, 1:]
    result = objective(logits, labels, weights=weights)
    scored = labels.ne(-100)
    routers = own.loss - F.cross_entropy(logits[scored], labels[scored])
    loss = result.loss * result.tokens / (items or result.tokens)
    if routers.abs() > 1e-4:  # otherwise the difference of float32 and float64
        loss = loss + routers
    loss.backward()
    found = gradients(family.model)
    family.model.zero_grad()
    return loss.detach(), found


@functools.cache
def definition(name):
    """Return SMILE's loss and gradients, from the logits of the unchanged model."""
    return formula(made(name), Objective("smile"))


def each_alone(model, rows, objective, router=0):
    """Return loss and gradients of a step on the rows, each computed alone and unpadded.

    A row has the model's inputs, labels and optional segments and weights: lists, or tensors
    (1, N). router: the coefficient of the mean of the rows' router losses.
    """
    model, total, tokens, routers = copy.deepcopy(model).train(), 0.0, 0, 0.0
    for row in rows:
        row = {k: v if torch.is_tensor(v) else torch.tensor([v]) for k, v in row.items()}
        labels = row.pop("labels")
        if model.config.is_encoder_decoder:
            row["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
            result = objective(model(**row).logits, labels)
        else:
            names = row.keys() & {"segments", "weights"}
            more = {name: row.pop(name)[:, 1:] for name in names}
            output = model(**row, use_cache=False)
            result = objective(output.logits[:, :-1], labels[:, 1:], **more)
            routers = routers + (router * output.aux_loss if router else 0)
        total, tokens = total + result.loss * result.tokens, tokens + result.tokens
    loss = total / (tokens if tokens > 0 else 1) + routers / len(rows)
    loss.backward()
    return loss.item(), gradients(model)


def assert_trains(name, model, tolerance=1e-9):
    """Assert that a step on the family's batch has the loss and gradients of `definition`."""
    loss, found = step(model, **made(name).batch)
    found = loss.double(), {key: x.double() for key, x in found.items()}
    torch.testing.assert_close(found, definition(name), atol=tolerance, rtol=0)


def needs(name):
    return pytest.mark.skipif(name not in hf_models.HERE, reason=f"transformers has no {name}")
