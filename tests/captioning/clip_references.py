"""What tests of CLIP and SigLIP compare with: a SigLIP 2 as transformers saves it, unit vectors."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.captioning.conftest import make_up

WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "cat", "dog", "the", "and"]


def save_siglip(folder):
    """Write a SigLIP 2 of 12 tokens and images of 24 by 24 into the folder, and return it.

    Skip the test where transformers has no SigLIP.
    """
    if not hasattr(transformers, "SiglipModel"):
        pytest.skip(f"transformers {transformers.__version__} has no SigLIP")
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    tower["num_attention_heads"] = 4
    config = transformers.SiglipConfig(
        text_config={**tower, "vocab_size": len(WORDS), "max_position_embeddings": 12},
        vision_config={**tower, "image_size": 24, "patch_size": 8},
    )
    model = transformers.SiglipModel(config)
    make_up(model, 0.25)
    model.save_pretrained(str(folder))
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.post_processor = ends
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(str(folder))
    processor = transformers.SiglipImageProcessorPil if hasattr(
        transformers, "SiglipImageProcessorPil") else transformers.SiglipImageProcessor  # fmt: skip
    processor(size={"height": 24, "width": 24}, resample=2).save_pretrained(str(folder))
    return folder


def unit(features):
    """Return unit vectors; of a single one, the vector."""
    features = getattr(features, "pooler_output", features)
    return torch.nn.functional.normalize(features, dim=-1).detach().numpy().squeeze()
