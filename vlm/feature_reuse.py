"""Encodes each photo once and repeats its features for its k captions.

A decoder-only model gets the features as the argument `mm_encoder_outputs`, which transformers has
since 5.20. In other models, forward hooks pass only the first of the k equal rows of each photo to
the encoder, and repeat its output k times.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from itertools import accumulate, chain
from typing import Any, Optional

import torch
from torch import Tensor, nn

from smile.hf import is_encoder_decoder
from vlm.collate import collate
from vlm.image_batch import ImageBatch

PIXEL_VALUES, ENCODER_OUTPUTS = "pixel_values", "mm_encoder_outputs"
# Attribute names of the image encoder in models of transformers.
IMAGE_ENCODER_NAMES = ("vision_tower", "vision_model", "image_encoder")
# Keys of the output of `get_image_features`. The decoder reads FEATURES and DEEPSTACK.
FEATURES = "pooler_output"
DEEPSTACK = "deepstack_features"  # features that Qwen3-VL adds in several layers of the decoder
# Keys of the same output that are not needed. If there is any further key, features are not reused.
UNUSED_OUTPUTS = {
    "last_hidden_state",
    "hidden_states",
    "attentions",
    "vision_outputs",
    "qformer_outputs",
}


class FeatureReuse:
    """A callable that takes B photos and k, and returns a context manager with B * k rows.

    The model must be called within the context. A model that supports neither of the two ways above
    encodes each photo k times.
    """

    def __init__(self, model: nn.Module):
        """model: the base model, without a peft wrapper."""
        self.model = model
        self.accepts_features = ENCODER_OUTPUTS in signature(type(model).forward).parameters
        self.encoders = []
        if is_encoder_decoder(model) or not hasattr(model, "get_image_features"):
            self.encoders = [
                module
                for name, module in model.named_modules()
                if name.rpartition(".")[2] in IMAGE_ENCODER_NAMES
            ]
            self.accepts_features = False
        if is_encoder_decoder(model):
            self.encoders.append(model.get_encoder())

    @contextmanager
    def __call__(self, images: ImageBatch, count: int) -> Iterator[tuple[ImageBatch, dict]]:
        """Yield each photo `count` times in a row, and a dict of further inputs of the model.

        If the dict has features, the photos have no pixel values. count: k, the number of captions
        of each photo.
        """
        if count == 1:
            yield images, {}
            return
        with ExitStack() as hooks:
            inputs = {}
            if self.accepts_features:
                features = self._features(images, count)
                if features is None:
                    self.accepts_features = False
                else:
                    inputs = {PIXEL_VALUES: None, ENCODER_OUTPUTS: {"image": features}}
                    images = images.select(images.items[0].keys() - {PIXEL_VALUES})
            for encoder in self.encoders:
                hooks.enter_context(_encode_first_rows(encoder, len(images), count))
            yield images.repeat(count), inputs

    def _features(self, images: ImageBatch, count: int) -> Optional[Any]:
        """Return the output of `get_image_features`, with each photo's features repeated k times.

        Return None if the output does not show which features belong to which photo.
        """
        accepted = signature(self.model.get_image_features).parameters
        sizes = [len(item[PIXEL_VALUES]) for item in images.items]
        inputs = collate(images.select(accepted).items, 0)
        output = self.model.get_image_features(**inputs, return_dict=True)
        features, deepstack = output[FEATURES], output.get(DEEPSTACK) or ()
        if len(features) == len(sizes):
            sizes = [1] * len(sizes)
        unknown = output.keys() - UNUSED_OUTPUTS - {FEATURES, DEEPSTACK}
        if unknown or any(len(values) != sum(sizes) for values in (features, *deepstack)):
            return None
        output[FEATURES] = _repeat(features, sizes, count)
        if deepstack:
            output[DEEPSTACK] = [_repeat(values, sizes, count) for values in deepstack]
        return output


def _repeat(features: Any, sizes: list[int], count: int) -> Any:
    """Repeat the features of each photo `count` times. sizes: the number of features per photo."""
    parts = [features[end - size : end] for end, size in zip(accumulate(sizes), sizes)]
    repeated = [part for part in parts for _ in range(count)]
    return torch.cat(repeated) if isinstance(features, Tensor) else [*chain.from_iterable(repeated)]


@contextmanager
def _encode_first_rows(encoder: nn.Module, images: int, count: int) -> Iterator[None]:
    """Make an encoder process only the first of each `count` equal rows, and repeat its output.

    images: B. Inputs that do not have B * count rows are left unchanged.
    """
    was_shortened = []

    def first_rows(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:1] != (images * count,):
            return value
        was_shortened.append(True)
        return value[::count]

    def shorten_inputs(module, arguments, keywords):
        was_shortened.clear()
        return tuple(map(first_rows, arguments)), {
            key: first_rows(v) for key, v in keywords.items()
        }

    def repeat_outputs(module, arguments, output):
        for key, value in output.items() if was_shortened else ():
            if isinstance(value, Tensor) and len(value) == images:
                output[key] = value.repeat_interleave(count, 0)
        return output

    hooks = [
        encoder.register_forward_pre_hook(shorten_inputs, with_kwargs=True),
        encoder.register_forward_hook(repeat_outputs),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
