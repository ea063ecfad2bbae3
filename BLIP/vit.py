"""Defines the image encoder, timm's vision transformer with BLIP's sizes and parameter names."""

from collections.abc import Mapping
from functools import partial
from typing import Union

import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from BLIP.sizes import VitSizes, check_image_size, vit_sizes


class RecomputableBlock(Block):
    """timm's block. With `recompute`, the backward pass computes its activations again."""

    recompute = False

    def forward(self, x: Tensor) -> Tensor:
        # The backward pass of torch's fused attention is slow on a CPU in 16 bits.
        is_slow = x.is_cpu and torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        self.attn.fused_attn = not is_slow
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(super().forward, x, use_reentrant=False)
        return super().forward(x)


class ImageEncoder(VisionTransformer):
    """Encodes normalised images (B, 3, S, S) -> (B, 1 + (S / patch_size)**2, embed_dim).

    The first embedding is that of [CLS], and one embedding per patch follows. Raises ValueError for
    an unknown name and for impossible sizes.

    - vit: a key of VIT_SIZES, or sizes
    - image_size: S
    - grad_ckpt: recompute the last `ckpt_layer` blocks in the backward pass, to save memory
    """

    def __init__(
        self,
        vit: Union[str, Mapping, VitSizes] = "base",
        image_size: int = 384,
        grad_ckpt: bool = False,
        ckpt_layer: int = 0,
    ):
        sizes = vit_sizes(vit)
        check_image_size(image_size, sizes)
        super().__init__(
            img_size=image_size,
            **sizes.model_dump(exclude={"layer_norm_eps", "initializer_range"}),
            num_classes=0,
            global_pool="",
            norm_layer=partial(nn.LayerNorm, eps=sizes.layer_norm_eps),
            block_fn=RecomputableBlock,
        )
        self.sizes = sizes
        if sizes.initializer_range is not None:
            nn.init.normal_(self.pos_embed, std=1.0)
            for module in self.blocks.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=sizes.initializer_range)
        for block in list(self.blocks)[::-1][:ckpt_layer]:
            block.recompute = grad_ckpt

    def forward(self, image: Tensor) -> Tensor:
        return self.forward_features(image)
