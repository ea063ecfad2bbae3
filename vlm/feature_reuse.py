"""Encodes a photo with several captions once and repeats its features for each caption.

A decoder-only model is given the features directly (`mm_encoder_outputs`, transformers 5.20 and
later). An encoder that maps one row to one photo is called with the first of the equal rows only.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from itertools import accumulate, chain
from typing import Any, Optional

import torch
from torch import Tensor, nn

from smile.hf.families import encoder_decoder
from vlm.collate import collate
from vlm.image_batch import ImageBatch

PIXELS, GIVEN = "pixel_values", "mm_encoder_outputs"
# Names of the image encoder in models without `get_encoder`.
TOWERS = ("vision_tower", "vision_model", "image_encoder")
# Keys of what `get_image_features` returns: read by the decoder, or unused.
FEATURES = "pooler_output"
DEEPER = "deepstack_features"  # Qwen3-VL adds these in several layers
UNUSED = {"last_hidden_state", "hidden_states", "attentions", "vision_outputs", "qformer_outputs"}


class FeatureReuse:
    """Called with B photos and k, yields the inputs of B * k rows.

    For a model that supports neither way the photos are repeated k times.
    """

    def __init__(self, model: nn.Module):
        """model: the base model, without a peft wrapper."""
        self.model = model
        self.takes_features = GIVEN in signature(type(model).forward).parameters
        self.encoders: list[nn.Module] = []
        if encoder_decoder(model) or not hasattr(model, "get_image_features"):
            named = model.named_modules()
            self.encoders = [m for name, m in named if name.rpartition(".")[2] in TOWERS]
            self.takes_features = False
        if encoder_decoder(model):
            self.encoders.append(model.get_encoder())

    @contextmanager
    def __call__(self, images: ImageBatch, count: int) -> Iterator[tuple[ImageBatch, dict]]:
        """The rows' photos and further inputs. Call the model inside the context."""
        with ExitStack() as hooks:
            given = {}
            if count > 1 and self.takes_features:
                features = self._features(images, count)
                if features is None:
                    self.takes_features = False
                else:
                    given = {PIXELS: None, GIVEN: {"image": features}}
                    images = images.without(PIXELS)
            for encoder in self.encoders if count > 1 else ():
                hooks.enter_context(_encode_first_rows(encoder, len(images), count))
            yield images.repeated(count), given

    def _features(self, images: ImageBatch, count: int) -> Optional[Any]:
        """Features of B photos, each photo's repeated k times in a row.

        None if they cannot be assigned to photos.
        """
        takes = signature(self.model.get_image_features).parameters
        sizes = [len(item[PIXELS]) for item in images.items]
        inputs = collate([{k: v for k, v in i.items() if k in takes} for i in images.items], 0)
        output = self.model.get_image_features(**inputs, return_dict=True)
        features, deeper = output[FEATURES], output.get(DEEPER) or ()
        if len(features) == len(sizes):
            sizes = [1] * len(sizes)
        other = output.keys() - UNUSED - {FEATURES, DEEPER}
        if other or any(len(each) != sum(sizes) for each in (features, *deeper)):
            return None
        output[FEATURES] = _repeat(features, sizes, count)
        if deeper:
            output[DEEPER] = [_repeat(each, sizes, count) for each in deeper]
        return output


def _repeat(features: Any, sizes: list[int], count: int) -> Any:
    """Repeat each photo's part `count` times; sizes: the length of each photo's part."""
    each = [features[end - size : end] for end, size in zip(accumulate(sizes), sizes)]
    again = [of_photo for of_photo in each for _ in range(count)]
    return torch.cat(again) if isinstance(features, Tensor) else [*chain.from_iterable(again)]


@contextmanager
def _encode_first_rows(encoder: nn.Module, images: int, count: int) -> Iterator[None]:
    """Let the encoder compute the first of each `count` equal rows and repeat its output."""
    seen = []

    def first(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:1] != (images * count,):
            return value
        seen.append(True)
        return value[::count]

    def before(module, arguments, named):
        seen.clear()
        return tuple(map(first, arguments)), {key: first(v) for key, v in named.items()}

    def after(module, arguments, output):
        for key, value in output.items() if seen else ():
            if isinstance(value, Tensor) and len(value) == images:
                output[key] = value.repeat_interleave(count, 0)
        return output

    hooks = [
        encoder.register_forward_pre_hook(before, with_kwargs=True),
        encoder.register_forward_hook(after),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
