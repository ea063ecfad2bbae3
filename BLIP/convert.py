"""Converts a checkpoint of BLIP to a folder that transformers loads, and back.

    python -m BLIP.convert to-hf checkpoints/blip_mle_smile_base.pth output/hf
    python -m BLIP.convert from-hf output/hf output/again.pth

A captioner, which has a text decoder, becomes a BlipForConditionalGeneration. A checkpoint without
a text decoder but with the heads of BLIP's filter (`BLIP.itm`) becomes a BlipForImageTextRetrieval.
The folder contains model.safetensors, config.json, the tokenizer and the image processor, and
`from_pretrained` loads it. Converting to a folder and back changes no bit. This program does not
import transformers, because version 4.15.0 has no BLIP.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional, Union

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from BLIP.blip import BlipCaptioner
from BLIP.card import write_card
from BLIP.checkpoint import (
    OPTIONAL_KEYS,
    WORD_EMBEDDING,
    CheckpointError,
    check_fits,
    read_checkpoint,
    run_config,
)
from BLIP.from_checkpoint import add_captioner_arguments, captioner_of, run_program
from BLIP.itm import HEAD, POSITION_IDS, BlipItm, load_itm
from BLIP.sizes import VIT_SIZES, MedConfig, read_med_config
from BLIP.text_decoder import TextDecoder
from BLIP.tokenizer import CONFIG, CaptionTokenizer
from BLIP.vit import ImageEncoder
from BLIP.writing import atomic_write, write_json
from smile import Objective

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
# Maps parts of our parameter names in the image encoder to the parts that replace them in
# transformers. The parameters of the text encoder and decoder have the same names in transformers.
NAMES = {
    "visual_encoder.cls_token": "vision_model.embeddings.class_embedding",
    "visual_encoder.pos_embed": "vision_model.embeddings.position_embedding",
    "visual_encoder.patch_embed.proj.": "vision_model.embeddings.patch_embedding.",
    "visual_encoder.norm.": "vision_model.post_layernorm.",
    "visual_encoder.blocks.": "vision_model.encoder.layers.",
    ".attn.qkv.": ".self_attn.qkv.",
    ".attn.proj.": ".self_attn.projection.",
    ".norm1.": ".layer_norm1.",
    ".norm2.": ".layer_norm2.",
}
ITM_WORD_EMBEDDING = "text_encoder.embeddings.word_embeddings.weight"
# Maps attributes of `VitSizes` to keys of vision_config in transformers' config.json.
VIT_NAMES = {
    "embed_dim": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "patch_size": "patch_size",
    "layer_norm_eps": "layer_norm_eps",
}


def to_hf_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the keys to transformers' names. Leave out OPTIONAL_KEYS and POSITION_IDS."""
    left_out = {*OPTIONAL_KEYS, POSITION_IDS}
    return {_rename(key, NAMES): value for key, value in state.items() if key not in left_out}


def from_hf_names(state: Mapping[str, Tensor], positions: int) -> dict[str, Tensor]:
    """Rename transformers' keys to ours, and add the keys that `to_hf_names` leaves out.

    positions: the number of positions of the text model. The weight of a captioner's head is always
    the word embedding, because the two are tied. Raises KeyError if the word embedding or the
    head's bias is missing.
    """
    names = {theirs: ours for ours, theirs in NAMES.items()}
    renamed = {_rename(key, names): value for key, value in state.items()}
    position_ids = torch.arange(positions).unsqueeze(0)
    if HEAD in renamed:
        return {**renamed, POSITION_IDS: position_ids}
    for key, source in OPTIONAL_KEYS.items():
        renamed[key] = renamed[source] if source else position_ids
    return renamed


def _rename(key: str, names: Mapping[str, str]) -> str:
    # names: maps old parts of keys to new parts.
    for old, new in names.items():
        key = key.replace(old, new)
    return key


def hf_config(model: Union[BlipCaptioner, BlipItm], label_smoothing: float = 0.1) -> dict:
    """Return the content of a model's `config.json`.

    label_smoothing: the value that transformers uses if it trains the model.
    """
    tokenizer = model.tokenizer
    vit = model.visual_encoder
    if isinstance(model, BlipItm):
        text = model.config
        config = {"architectures": ["BlipForImageTextRetrieval"]}
        config["image_text_hidden_size"] = model.text_proj.out_features
    else:
        text = model.text_decoder.config
        config = {"architectures": ["BlipForConditionalGeneration"], "tie_word_embeddings": True}
        config["label_smoothing"] = label_smoothing
    return {
        **config,
        "model_type": "blip",
        "text_config": {
            "model_type": "blip_text_model",
            "vocab_size": len(tokenizer),
            "encoder_hidden_size": vit.embed_dim,
            **text.model_dump(exclude={"initializer_range"}),
            "label_smoothing": label_smoothing,
            **special_ids(tokenizer),
            "sep_token_id": tokenizer.end,
        },
        "vision_config": {
            "model_type": "blip_vision_model",
            **{theirs: getattr(vit.sizes, ours) for ours, theirs in VIT_NAMES.items()},
            "intermediate_size": vit.blocks[0].mlp.fc1.out_features,
            "image_size": vit.patch_embed.img_size[0],
        },
    }


def special_ids(tokenizer: CaptionTokenizer) -> dict[str, int]:
    """Return the ids of special tokens by transformers' names, such as bos_token_id."""
    ids = {"bos": tokenizer.start, "eos": tokenizer.end, "pad": tokenizer.pad}
    return {f"{name}_token_id": token_id for name, token_id in ids.items()}


def settings_of(config: Mapping) -> dict:
    """Return the arguments `vit`, `image_size` and `med_config` for `BlipCaptioner`.

    config: the content of `config.json`. Raises CheckpointError for a model other than BLIP and for
    an activation function other than GELU.
    """
    model_type = config.get("model_type")
    if model_type != "blip":
        raise CheckpointError(f"expected the model_type 'blip', found {model_type!r}")
    # Missing keys get the defaults of transformers. Most of these defaults equal MedConfig's.
    sizes = MedConfig().model_dump()
    text = {
        **sizes,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_attention_heads": 8,
        **config["text_config"],
    }
    vision = {
        **sizes,
        "image_size": 384,
        "patch_size": 16,
        "layer_norm_eps": 1e-5,
        **config["vision_config"],
    }
    if vision["hidden_act"] != "gelu":
        raise CheckpointError("its hidden_act is not 'gelu'; only 'gelu' is supported")
    vit = {ours: vision[theirs] for ours, theirs in VIT_NAMES.items()}
    vit["mlp_ratio"] = vision["intermediate_size"] / vision["hidden_size"]
    names = (k for k, v in VIT_SIZES.items() if vit == v.model_dump(include=vit.keys()))
    return {
        "vit": next(names, vit),  # prefer a name, because "large" also sets the drop path rate
        "image_size": vision["image_size"],
        "med_config": {name: text[name] for name in MedConfig.model_fields},
    }


def save_hf(model: Union[BlipCaptioner, BlipItm], folder: Union[str, Path]) -> None:
    """Write a model as a folder that transformers loads, from version 4.26 on.

    Raises CheckpointError for a captioner with first_token_shift. The first token of its captions
    is a piece such as ##a, which transformers would append to the last word of the prompt.
    """
    if getattr(model, "shift", None):
        raise CheckpointError(
            "the captioner was trained with first_token_shift, which transformers does not "
            "support; python -m BLIP.export does"
        )
    folder = Path(folder)
    tokenizer = model.tokenizer
    config = hf_config(model)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.write(folder)
    state = {k: v.contiguous() for k, v in to_hf_names(model.state_dict()).items()}
    with atomic_write(folder / "model.safetensors") as file:
        save_file(state, file, metadata={"format": "pt"})
    write_json(config, folder / "config.json")
    if isinstance(model, BlipCaptioner):
        ids = {**special_ids(tokenizer), "sep_token_id": tokenizer.end}
        write_json(ids, folder / "generation_config.json")
    write_json(tokenizer.added_ids, folder / "added_tokens.json")
    names = {"image_processor_type": "BlipImageProcessor", "processor_class": "BlipProcessor"}
    write_processing(tokenizer, config["vision_config"]["image_size"], names, folder)


def write_processing(tokenizer: CaptionTokenizer, size: int, names: dict, folder: Path) -> None:
    """Write tokenizer_config.json and preprocessor_config.json into `folder`.

    size: the height and width of an image in pixels. names: entries of preprocessor_config.json
    that name the classes, such as {"image_processor_type": "ViTImageProcessor"}. `save_hf` and
    `BLIP.export` call this.
    """
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    tokenizer_config = {
        "do_lower_case": True,
        **json.loads(tokenizer.files.get(CONFIG, "{}")),
        "tokenizer_class": "BertTokenizer",
        "clean_up_tokenization_spaces": True,
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": "[DEC]",
        "additional_special_tokens": ["[ENC]"],
        "added_tokens_decoder": {
            str(id_): {"content": token, "special": True, **flags}
            for token, id_ in tokenizer.added_ids.items()
        },
    }
    write_json(tokenizer_config, folder / "tokenizer_config.json")
    processor_config = {
        **names,
        "do_resize": True,
        "size": {"height": size, "width": size},
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": STD,
        "do_convert_rgb": True,
    }
    write_json(processor_config, folder / "preprocessor_config.json")


def read_hf(folder: Union[str, Path]) -> dict:
    """Read a folder of transformers and return a checkpoint. Raises CheckpointError.

    The checkpoint has "model", the state dict under our names, and "config", which contains `vit`,
    `image_size` and `med_config` for `BlipCaptioner`.
    """
    folder = Path(folder)
    try:
        settings = settings_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        sizes = read_med_config(settings["med_config"])
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: config.json cannot be used: {error}") from error
    weights = [folder / name for name in ("model.safetensors", "pytorch_model.bin")]
    path = next((path for path in weights if path.exists()), None)
    if path is None:
        raise CheckpointError(f"{folder} has neither model.safetensors nor pytorch_model.bin")
    state = read_checkpoint(str(path))["model"]
    try:
        state = from_hf_names(state, sizes.max_position_embeddings)
        with torch.device("meta"):  # only the shapes are needed, to check the file
            encoder = ImageEncoder(settings["vit"], settings["image_size"])
            if HEAD in state:
                vocabulary = range(len(state[ITM_WORD_EMBEDDING]))  # only its length is used
                width = len(state["text_proj.weight"])
                model = BlipItm(encoder, sizes, vocabulary, width)
            else:
                decoder = TextDecoder(
                    sizes, len(state[WORD_EMBEDDING]), encoder.embed_dim, Objective()
                )
                model = nn.ModuleDict({"visual_encoder": encoder, "text_decoder": decoder})
    except KeyError as error:
        raise CheckpointError(f"{path}: there is no {error.args[0]}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    check_fits(model.state_dict(), state, f"{path} (with the sizes in config.json)")
    return {"model": state, "config": settings}


def _convert_to_hf(folder: str, license: str, **arguments) -> str:
    """Write the folder and its model card. Return a line to print.

    The checkpoint is loaded as BLIP's filter if it has the filter's head and no text decoder,
    otherwise as a captioner. arguments: those of `captioner_of`.
    """
    name = arguments["checkpoint"]
    content = read_checkpoint(name, arguments["trust_checkpoint"], mapped=True)
    is_filter = HEAD in content["model"] and WORD_EMBEDDING not in content["model"]
    save_hf(load_itm(**arguments)[0] if is_filter else captioner_of(**arguments), folder)
    write_card(Path(folder), name, run_config(content), license, "transformers")
    return f"wrote {folder}"


def _convert_from_hf(folder: str, checkpoint: str) -> str:
    content = read_hf(folder)
    with atomic_write(Path(checkpoint)) as file:
        torch.save(content, file)
    return f"wrote {checkpoint}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code. argv: None reads the command line."""
    parser = argparse.ArgumentParser(
        "python -m BLIP.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    to_hf = commands.add_parser("to-hf", help="convert a checkpoint to a folder of transformers")
    add_captioner_arguments(to_hf)
    to_hf.add_argument("folder")
    to_hf.add_argument("--license", default="unknown", help="for the card, such as bsd-3-clause")
    from_hf = commands.add_parser("from-hf", help="convert a folder of transformers back")
    from_hf.add_argument("folder")
    from_hf.add_argument("checkpoint", help="the .pth file to write")
    arguments = vars(parser.parse_args(argv))
    convert = {"to-hf": _convert_to_hf, "from-hf": _convert_from_hf}[arguments.pop("command")]
    return run_program(lambda: convert(**arguments))


if __name__ == "__main__":
    sys.exit(main())
