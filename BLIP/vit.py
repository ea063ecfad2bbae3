"""Defines the image encoder, timm's vision transformer with BLIP's sizes and parameter names."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Union

import torch
import torch.nn.functional as F
from timm.layers import Attention, Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from BLIP.kernels.attention import attention
from BLIP.kernels.recompute_linear import recompute_linear
from BLIP.sizes import VitSizes, check_image_size, vit_sizes

# Without gradients, a CPU encodes images in chunks whose widest activation has at most this number
# of elements. Larger activations do not fit in the CPU's cache, and encoding takes a tenth longer.
MAX_ACTIVATION = 2**22


class ImageAttention(Attention):
    """Applies LayerNorm, then timm's attention by `BLIP.kernels`: (B, N, D) -> (B, N, D)."""

    def forward(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        qkv = recompute_linear(x, self.qkv, norm)
        # Query, key and value, each (B, heads, N, D / heads).
        qkv = qkv.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return recompute_linear(attention(*qkv).transpose(1, 2).flatten(2), self.proj)


class ImageMlp(Mlp):
    """Applies LayerNorm, then timm's MLP by `BLIP.kernels`: (B, N, D) -> (B, N, D)."""

    def forward(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        return recompute_linear(recompute_linear(x, self.fc1, norm), self.fc2, F.gelu)


class RecomputableBlock(Block):
    """A block that can set the state of autocast in its own forward.

    This is necessary if fairscale recomputes the block in the backward pass: it restores autocast
    without its dtype, so that bfloat16 would become float16.
    """

    autocast = None  # the arguments of torch.autocast, which `ImageEncoder.forward` sets

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(**self.autocast) if self.autocast else nullcontext():
            x = x + self.drop_path1(self.attn(x, self.norm1))
            return x + self.drop_path2(self.mlp(x, self.norm2))


class ImageEncoder(VisionTransformer):
    """Encodes normalised images (B, 3, S, S) -> (B, 1 + (S / patch_size)**2, embed_dim).

    The first embedding is that of [CLS], and one embedding per patch follows. vit: a key of
    VIT_SIZES, or sizes. image_size: S. grad_ckpt: recompute the last `ckpt_layer` blocks in the
    backward pass, to save memory. Raises ValueError for an unknown name and for impossible sizes.
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
            attn_layer=ImageAttention,
            mlp_layer=ImageMlp,
        )
        self.sizes = sizes
        if sizes.initializer_range is not None:
            nn.init.normal_(self.pos_embed, std=1.0)
            for module in self.blocks.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=sizes.initializer_range)
        widest = self.pos_embed.size(1) * self.blocks[0].mlp.fc1.out_features
        self.images_at_once = max(MAX_ACTIVATION // widest, 1)
        self.recomputed = list(self.blocks)[::-1][:ckpt_layer] if grad_ckpt else []
        if self.recomputed:
            from fairscale.nn.checkpoint import checkpoint_wrapper

            for block in self.recomputed:
                checkpoint_wrapper(block)  # changes the block in place; parameters keep their names

    def forward(self, image: Tensor) -> Tensor:
        device = image.device.type
        for block in self.recomputed:
            block.autocast = {
                "device_type": device,
                "dtype": torch.get_autocast_dtype(device),
                "enabled": torch.is_autocast_enabled(device),
            }
        if device != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.forward_features(image)
        chunks = image.split(self.images_at_once)
        return torch.cat([self.forward_features(chunk) for chunk in chunks])
