"""What the code of a model's classes tells of it: the names in its forward.

A configuration alone does not tell what a model does: that of a text decoder stays, with the scale
of its logits, in a vision-language model that does nothing to them. The names are read once, when
`use_smile` is called, and their values in each step.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from torch import nn

# What models call a number that their head's logits are multiplied with, and one that caps them.
SCALES = ("logit_scale", "lm_head_multiplier", "output_multiplier")
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
OF_LOGITS = (*SCALES, *CAPS, "logits_scaling", "final_logits_bias", "unpadded_vocab_size")
# And the weights of losses that they add to that of their labels.
OF_LOSSES = ("router_aux_loss_coef", "aux_loss_coef", "router_z_loss_coef", "z_loss_coefficient")


class Known(NamedTuple):
    """spoken: for each name above that a forward speaks of, the part of the model that it is of.

    masks_by_labels: whether words see those after them unless the model is given labels.
    """

    spoken: dict[str, str]
    masks_by_labels: bool

    def value(self, model: nn.Module, name: str, default: Any = None) -> Any:
        """That which the forward of `model` reads, in itself or in its configuration."""
        if name not in self.spoken:
            return default
        part = self.spoken[name]
        owner = getattr(model, part) if part else model
        config = owner.config
        configs = (getattr(config, inner, None) for inner in ("text_config", "decoder"))
        for place in (owner, *configs, config):
            value = getattr(place, name, None)
            if value is not None:
                return value
        return default


def known_of(model: nn.Module) -> Known:
    """Read the forwards of the model, and of the decoder in it that has a head of its own."""
    spoken: dict[str, str] = {}
    for part, owner in (("", model), *model.named_children()):
        if hasattr(owner, "config"):
            names = _names(type(owner))
            for name in names.intersection((*OF_LOGITS, *OF_LOSSES)):
                spoken.setdefault(name, part)
    return Known(spoken, _masks_by_labels(model))


def of_version(model: nn.Module) -> str:
    """The model's class and the version of the library that it is from."""
    library = sys.modules.get(type(model).__module__.split(".")[0])
    version = getattr(library, "__version__", "of an unknown version")
    return f"{type(model).__name__} of transformers {version}"


def _names(kind: type) -> set[str]:
    """The names and strings in a class's forward, and in those that it hands on to."""
    found: set[str] = set()
    for base in kind.__mro__:
        code = _code(vars(base).get("forward"))
        if code is not None:
            found.update(code.co_names, (x for x in code.co_consts if isinstance(x, str)))
            if "super" not in code.co_names:
                break
    return found


def _masks_by_labels(model: nn.Module) -> bool:
    """PaliGemma's mask in transformers 4.41 to 4.57 was that of reading, in which words see all
    others, unless it had labels. It was made in the forward, of a local variable, or before 4.45
    where images are put among the words."""
    if "PaliGemma" not in type(model).__name__:
        return False
    merge = getattr(type(model), "_merge_input_ids_with_image_features", None)
    if "token_type_ids" in _variables(merge):
        return True
    return any(
        {"labels", "is_training"} <= _variables(vars(kind).get("forward"))
        for part in (model, *model.children())
        for kind in type(part).__mro__
    )


def _variables(function: Optional[Callable]) -> set[str]:
    code = _code(function)
    return set() if code is None else set(code.co_varnames)


def _code(function: Optional[Callable]):
    return getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
