"""Tiny models of transformers, a step of one in training, and its loss and gradients by definition.

A family's name is that of the model's class, and, after a comma, its kind.
"""

import copy
import functools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import transformers

from smile import Objective
from tests.smile.families import language, vision_language

FAMILIES = {**language.FAMILIES, **vision_language.FAMILIES}
GPT2, T5 = BOTH_KINDS = ["GPT2LMHeadModel", "T5ForConditionalGeneration"]
LLAMA, LLAVA = "LlamaForCausalLM", "LlavaForConditionalGeneration"


def class_of(name):
    return name.split(",")[0]


HERE = [name for name in sorted(FAMILIES) if hasattr(transformers, class_of(name))]


def new(name):
    return FAMILIES[name](class_of(name))


def make(name):
    """Return the family in float64 and in evaluation mode."""
    family = new(name)
    for key, value in family.batch.items():
        if torch.is_tensor(value) and value.is_floating_point():
            family.batch[key] = value.double()
    knows_float64(family.model)
    return family._replace(model=family.model.double().eval())


def knows_float64(model):
    """Replace masks and grouped products of transformers that do not support float64."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    for module in model.modules():
        if transformers.__version__ == "4.15.0" and hasattr(module, "invert_attention_mask"):
            module.invert_attention_mask = inverted
        if type(module).__name__ == "Kosmos2TextTransformer":
            prepare = module._prepare_decoder_attention_mask
            module._prepare_decoder_attention_mask = functools.partial(in_float32, prepare)


def inverted(mask):
    return (1 - mask[:, None, None, :].double()) * -1e9


def in_float32(prepare, mask, shape, embeddings, *args):
    return prepare(mask, shape, embeddings.float(), *args).double()


def made(name):
    """Return the family in training mode, with fixed weights and without dropout."""
    torch.manual_seed(0)
    family = make(name)
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
    return pytest.mark.skipif(name not in HERE, reason=f"transformers has no {name}")
