"""A forward that stays on top of its model, whatever is set as the forward of the instance.

Trainers, accelerate, PEFT and kernels set `model.forward`, usually to a wrapper of what was there.
Python would then look at the instance alone. `Forward` takes what is set and puts it below itself:
a wrapper that was set later is called earlier, and the class's own forward last. Each has got hold
of the forward that was there before, which is a `Forward` too, and so leads to the next one below.
"""

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple, Optional

import torch
from torch import nn

# How many forwards are below each function that a model's `forward` has been.
_DEPTHS = weakref.WeakKeyDictionary()


class _Set(NamedTuple):
    """What was set: a function of the model, if it was a method, so that a copy has its own."""

    function: Callable
    is_method: bool
    after_prepare: bool  # of accelerate, which takes off again what it put there and later ones


class Forward:
    """A descriptor for `forward` of a class whose base is `original`.

    call: (model, what is below, args, kwargs) -> the output, for every call of the forward, those
    that come from below included. takes: the keywords that it has besides those of the class. The
    model's attribute `_smile_chain` has what was set, the first one first.
    """

    def __init__(self, original: type, call: Callable, takes: Iterable[str]):
        self.original, self.call, self.takes = original, call, takes
        self.functions = [self._function(0)]

    def _function(self, depth: int) -> Callable:
        original, call = self.original, self.call

        @functools.wraps(original.forward)
        def forward(self, *args, **kwargs):
            return call(self, below(self, original, depth), args, kwargs)

        forward.__signature__ = _with_keywords(original.forward, self.takes)
        _DEPTHS[forward] = depth
        return forward

    def __get__(self, model: Optional[nn.Module], owner: Optional[type] = None) -> Callable:
        if model is None:
            return self.functions[0]
        function = self.functions[len(model._smile_chain)]
        if torch.compiler.is_compiling():
            return functools.partial(function, model)  # Dynamo makes no method
        return types.MethodType(function, model)

    def __set__(self, model: nn.Module, value: Callable) -> None:
        chain = list(model._smile_chain)
        function, is_method = _unbound(value, model)
        is_ours = isinstance(function, types.FunctionType) and function in _DEPTHS
        if is_ours and is_method:  # and comes back
            del chain[_DEPTHS[function] :]
        elif is_method and self._is_of_the_class(function):
            kept = [x for x in chain if not x.after_prepare]
            chain = kept if len(kept) < len(chain) else []
        else:
            chain.append(_Set(function, is_method, "_original_forward" in model.__dict__))
        self.put_under(model, tuple(chain))

    def put_under(self, model: nn.Module, chain: tuple) -> None:
        model._smile_chain = chain
        while len(self.functions) <= len(chain):
            self.functions.append(self._function(len(self.functions)))

    def __delete__(self, model: nn.Module) -> None:
        if not model._smile_chain:
            raise AttributeError("forward")
        model._smile_chain = ()

    def _is_of_the_class(self, function: Callable) -> bool:
        """Whether it is the class's forward, or inside of its decorators."""
        own = self.original.forward
        while own is not None and own is not function:
            own = getattr(own, "__wrapped__", None)
        return own is not None


def below(model: nn.Module, original: type, depth: int) -> Callable:
    """The next forward of `model`, bound, under one that has `depth` of those that were set.

    The class is asked when it is called, since a class can be patched later.
    """
    if depth == 0:
        return functools.partial(original.forward, model)
    function, is_method, _ = model._smile_chain[depth - 1]
    return functools.partial(function, model) if is_method else function


def put_on(model: nn.Module, call: Callable, takes: Iterable[str], **content) -> None:
    """Give the model a class of its own, in which `forward` is ours and the rest is `content`.

    A class rather than an attribute of the instance, which copies and replicas of the model would
    share. Names are kept since checkpoints and Trainer read them.
    """
    original = type(model)
    content.update({name: getattr(original, name) for name in ("__module__", "__doc__")})
    content.update(__qualname__=original.__qualname__, _without_smile=original, _smile_chain=())
    own = model.__dict__.pop("forward", None)
    before = model.__dict__.pop("_smile_chain", ())
    forward = Forward(original, call, takes)
    model.__class__ = type(original.__name__, (original,), {"forward": forward, **content})
    forward.put_under(model, before)
    if own is not None and not (before and own == _bound(before[-1], model)):
        model.forward = own


def take_off(model: nn.Module) -> None:
    """Give the model its class back, and what was set as its forward. Under a class that FSDP put
    on top ours stays."""
    original = type(model).__dict__.get("_without_smile")
    if original is None:
        return
    model.__class__ = original
    chain = model.__dict__.get("_smile_chain")  # stays there for those that lead to the next below
    if chain:
        model.forward = _bound(chain[-1], model)


def _with_keywords(function: Callable, names: Iterable[str]) -> inspect.Signature:
    """That of a function which takes these too: Trainer removes columns of other names."""
    signature, only = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
    own = signature.parameters
    added = [inspect.Parameter(name, only, default=None) for name in names if name not in own]
    # **kwargs stay last.
    return signature.replace(parameters=sorted([*own.values(), *added], key=lambda x: x.kind))


def _unbound(value: Callable, model: nn.Module) -> tuple[Callable, bool]:
    """A function of the model and True, if `value` is a method of it; or `value` and False."""
    is_method = getattr(value, "__self__", None) is model
    while is_method and getattr(value, "__self__", None) is model:
        value = value.__func__
    return value, is_method


def _bound(value: _Set, model: nn.Module) -> Callable:
    return types.MethodType(value.function, model) if value.is_method else value.function
