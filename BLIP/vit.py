"""The image encoder: timm's vision transformer in BLIP's sizes, with BLIP's parameter names."""

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

VIT_SIZES = {
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16, "drop_path_rate": 0.1},
}

# Elements of the widest activation when a CPU encodes images without gradients: more would leave
# its cache and take a tenth longer.
MAX_ACTIVATION = 2**22

NEEDED_SIZES = ("embed_dim", "depth", "num_heads")
OTHER_SIZES = ("patch_size", "mlp_ratio", "drop_path_rate", "layer_norm_eps", "initializer_range")


class ImageAttention(Attention):
    """timm's, (B, N, D) -> (B, N, D), with our attention kernel; it applies the norm itself."""

    def forward(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        joined = recompute_linear(x, self.qkv, norm)
        heads = joined.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        # Each of the three is (B, heads, N, D / heads).
        return recompute_linear(attention(*heads).transpose(1, 2).flatten(2), self.proj)


class ImageMlp(Mlp):
    """timm's, (B, N, D) -> (B, N, D); it applies the norm itself."""

    def forward(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        return recompute_linear(recompute_linear(x, self.fc1, norm), self.fc2, F.gelu)


class RecomputableBlock(Block):
    """A block that sets its own autocast.

    fairscale's recomputation in backward restores autocast without its dtype: bfloat16 would become
    float16.
    """

    autocast = None  # the arguments of torch.autocast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(**self.autocast) if self.autocast else nullcontext():
            x = x + self.drop_path1(self.attn(x, self.norm1))
            return x + self.drop_path2(self.mlp(x, self.norm2))


class ImageEncoder(VisionTransformer):
    """Image (B, 3, S, S), normalised -> embeddings (B, 1 + (S / patch_size)**2, embed_dim).

    vit: "base", "large", or a mapping with embed_dim, depth, num_heads and optionally patch_size
    (16), mlp_ratio (4), drop_path_rate (0), layer_norm_eps (1e-6), initializer_range. The last one
    is the standard deviation of the blocks' random weights, 0.02 by default; narrow encoders learn
    faster with about embed_dim**-0.5. With it the position embedding has a standard deviation of 1,
    like the patches. grad_ckpt: the last `ckpt_layer` blocks are recomputed in backward. Raises
    ValueError for any other `vit`.
    """

    def __init__(
        self,
        vit: Union[str, Mapping] = "base",
        image_size: int = 384,
        grad_ckpt: bool = False,
        ckpt_layer: int = 0,
    ):
        sizes = _sizes(vit)
        initializer_range = sizes.pop("initializer_range", None)
        eps = sizes.pop("layer_norm_eps", 1e-6)
        super().__init__(
            img_size=image_size,
            **sizes,
            num_classes=0,
            global_pool="",
            norm_layer=partial(nn.LayerNorm, eps=eps),
            block_fn=RecomputableBlock,
            attn_layer=ImageAttention,
            mlp_layer=ImageMlp,
        )
        if initializer_range is not None:
            nn.init.normal_(self.pos_embed, std=1.0)
            for module in self.blocks.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=initializer_range)
        widest = self.pos_embed.size(1) * self.blocks[0].mlp.fc1.out_features
        self.images_at_once = max(MAX_ACTIVATION // widest, 1)
        self.recomputed = list(self.blocks)[::-1][:ckpt_layer] if grad_ckpt else []
        if self.recomputed:
            from fairscale.nn.checkpoint import checkpoint_wrapper

            for block in self.recomputed:
                checkpoint_wrapper(
                    block
                )  # replaces the block's forward and keeps its parameter names

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
        return torch.cat([self.forward_features(some) for some in image.split(self.images_at_once)])


def _sizes(vit: Union[str, Mapping]) -> dict:
    if isinstance(vit, str):
        if vit not in VIT_SIZES:
            raise ValueError(f"vit is {vit!r}; it must be {', '.join(VIT_SIZES)} or sizes")
        return dict(VIT_SIZES[vit])
    wrong = [f"lacks {key}" for key in NEEDED_SIZES if key not in vit]
    wrong += [f"has an unknown {key}" for key in vit if key not in NEEDED_SIZES + OTHER_SIZES]
    if wrong:
        raise ValueError(f"vit {' and '.join(wrong)}")
    return dict(vit)


def resize_position_embedding(pos_embed: Tensor, tokens: int) -> Tensor:
    """Resize a position embedding (1, 1 + p*p, D) bicubically to 1 + q*q = `tokens`.

    The class token's is unchanged. Raises ValueError if either grid is not a square.
    """
    before, after = (round((n - 1) ** 0.5) for n in (pos_embed.size(1), tokens))
    if (before**2, after**2) != (pos_embed.size(1) - 1, tokens - 1):
        raise ValueError(
            f"{pos_embed.size(1)} or {tokens} positions are not a class token and a square"
        )
    token, grid = pos_embed[:, :1], pos_embed[:, 1:]
    grid = grid.reshape(1, before, before, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(after, after), mode="bicubic", align_corners=False)
    return torch.cat([token, grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
