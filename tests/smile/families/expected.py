"""What a family's loss has to be, from the logits of its unchanged model."""

import torch.nn.functional as F

from tests.smile.hf_steps import gradients


def predictions(family, logits):
    """Return logits and labels, aligned."""
    logits, labels = logits[:, family.before :], family.batch["labels"]
    return (logits[:, :-1], labels[:, 1:]) if family.shift else (logits, labels)


def definition(family, objective, items=None, weights=None):
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
