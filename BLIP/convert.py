"""BLIP's captioner to a folder of transformers' BlipForConditionalGeneration, and back.

    python -m BLIP.convert to-hf checkpoints/blip_mle_smile_base.pth output/hf
    python -m BLIP.convert from-hf output/hf output/again.pth

The folder holds model.safetensors, config.json, the tokeniser and the image processor, and loads
with `from_pretrained`. The way there and back gives the same state dict bit for bit.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Optional, Union

import torch
from safetensors.torch import save_file
from torch import Tensor

from BLIP.blip import BlipCaptioner
from BLIP.build import MED_CONFIG, build_captioner
from BLIP.checkpoint import POSITION_EMBEDDING, CheckpointError, load_weights, read_checkpoint
from BLIP.errors import exit_code, first_line
from BLIP.hf_names import from_hf_names, hf_config, settings_of, to_hf_names
from BLIP.med import TextDecoder
from BLIP.med_config import read_med_config
from BLIP.tokenizer import CaptionTokenizer
from BLIP.vit import ImageEncoder
from smile import Objective

PATCH = "visual_encoder.patch_embed.proj.weight"
ADDED = ("[DEC]", "[ENC]")
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def save_hf(captioner: BlipCaptioner, folder: Union[str, Path]) -> None:
    """Write a captioner as a folder that transformers loads (its versions from 4.26 on)."""
    folder, words = Path(folder), captioner.tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    write_vocabulary(words, folder)
    state = {k: v.contiguous() for k, v in to_hf_names(captioner.state_dict()).items()}
    with _whole(folder / "model.safetensors") as staged:
        save_file(state, staged, metadata={"format": "pt"})
    config = hf_config(captioner)
    size = config["vision_config"]["image_size"]
    added = {token: words.bert.convert_tokens_to_ids(token) for token in ADDED}
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    ends = {key: id_ for key, id_ in config["text_config"].items() if key.endswith("_token_id")}
    write_json(config, folder / "config.json")
    write_json(ends, folder / "generation_config.json")
    write_json(added, folder / "added_tokens.json")
    tokenizer = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "clean_up_tokenization_spaces": True,
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": "[DEC]",
        "additional_special_tokens": ["[ENC]"],
        "added_tokens_decoder": {
            str(id_): {"content": token, "special": True, **flags} for token, id_ in added.items()
        },
    }
    write_json(tokenizer, folder / "tokenizer_config.json")
    processor = {
        "image_processor_type": "BlipImageProcessor",
        "processor_class": "BlipProcessor",
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
    write_json(processor, folder / "preprocessor_config.json")


def read_hf(folder: Union[str, Path]) -> dict:
    """A folder of transformers' as a checkpoint: `model`, and in `config` the arguments `vit`,
    `image_size` and `med_config` that `build_captioner` takes. Raises CheckpointError."""
    folder = Path(folder)
    try:
        settings = settings_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: config.json cannot be used: {error}") from error
    weights = [folder / name for name in ("model.safetensors", "pytorch_model.bin")]
    present = [path for path in weights if path.exists()]
    if not present:
        raise CheckpointError(f"{folder} holds no model.safetensors and no pytorch_model.bin")
    state = read_checkpoint(str(present[0]))["model"]
    positions = settings["med_config"]["max_position_embeddings"]
    try:
        ours = from_hf_names(state, positions)
        _check_sizes(ours, settings)
    except ValueError as error:
        raise CheckpointError(f"{present[0]}: {error}") from error
    return {"model": ours, "config": settings}


def _check_sizes(state: Mapping[str, Tensor], settings: Mapping) -> None:
    """Raise CheckpointError unless a captioner of these sizes finds all of its weights."""
    with torch.device("meta"):
        encoder = ImageEncoder(settings["vit"], settings["image_size"])
        words = len(state["text_decoder.bert.embeddings.word_embeddings.weight"])
        sizes = read_med_config(settings["med_config"])
        decoder = TextDecoder(sizes, words, encoder.embed_dim, Objective())
    for part, module in {"visual_encoder": encoder, "text_decoder": decoder}.items():
        for name, expected in module.state_dict().items():
            found = state.get(f"{part}.{name}")
            if found is None:
                raise CheckpointError(f"there is no {part}.{name}: this is no whole captioner")
            if found.shape != expected.shape:
                raise CheckpointError(
                    f"{part}.{name} is {tuple(found.shape)}; config.json makes it "
                    f"{tuple(expected.shape)}"
                )


def save_checkpoint(content: dict, path: Union[str, Path]) -> None:
    """Write a .pth file, which appears when it is whole. Raises CheckpointError."""
    with _whole(Path(path)) as staged:
        torch.save(content, staged)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of `path` when the block has ended well."""
    staged = path.parent / f".{path.name}.{os.getpid()}"
    try:
        yield staged
        os.replace(staged, path)
    except Exception as error:  # torch and safetensors have types of their own for a full disk
        raise CheckpointError(f"cannot write {path}: {first_line(error)}") from error
    finally:
        staged.unlink(missing_ok=True)


def write_vocabulary(words: CaptionTokenizer, folder: Path) -> None:
    """BERT's `vocab.txt`, which BLIP's two tokens are appended to wherever it is read."""
    ids = {token: id_ for token, id_ in words.bert.get_vocab().items() if token not in ADDED}
    lines = "\n".join(sorted(ids, key=ids.get))
    (folder / "vocab.txt").write_text(lines + "\n", encoding="utf-8")


def captioner_of(
    checkpoint: str,
    tokenizer: Optional[str] = None,
    vit: Union[str, dict, None] = None,
    med_config: Union[str, Path, dict, None] = None,
    trust_checkpoint: bool = False,
) -> BlipCaptioner:
    """The captioner of a checkpoint, at the image size of its position embedding.

    What is not given comes from the configuration that the checkpoint holds, if it holds one, or
    is BLIP's: bert-base-uncased, configs/med_config.json, and the encoder of that width.
    """
    content = read_checkpoint(checkpoint, trust_checkpoint)
    state, kept = content["model"], content.get("config")
    kept = kept if isinstance(kept, dict) else {}
    if not {PATCH, POSITION_EMBEDDING} <= set(state):
        raise CheckpointError(f"{checkpoint} holds no image encoder of BLIP's")
    width, places = state[PATCH].size(0), state[POSITION_EMBEDDING].size(1) - 1
    sizes = kept.get("med_config", MED_CONFIG)
    if isinstance(sizes, str):  # a relative path of a run starts in the repository
        sizes = MED_CONFIG.parent.parent / sizes
    captioner = build_captioner(
        tokenizer=tokenizer or kept.get("tokenizer", "bert-base-uncased"),
        vit=vit or kept.get("vit") or ("large" if width == 1024 else "base"),
        image_size=state[PATCH].size(2) * round(places**0.5),
        med_config=med_config or sizes,
    )
    load_weights(captioner, state, checkpoint)
    return captioner.eval()


def write_json(content: dict, path: Path) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _name_or_mapping(text: str) -> Union[str, dict]:
    return json.loads(text) if text.startswith("{") else text


def add_captioner_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `captioner_of`."""
    parser.add_argument("checkpoint", help="path, URL or hf:// name")
    parser.add_argument("--tokenizer", help="hub name, folder with vocab.txt, or that file")
    parser.add_argument("--vit", type=_name_or_mapping, help="base, large, or sizes as JSON")
    parser.add_argument("--med_config", type=_name_or_mapping, help="a file, or sizes as JSON")
    parser.add_argument("--trust_checkpoint", action="store_true")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program on its arguments (those of the command line); return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m BLIP.convert", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    there = commands.add_parser("to-hf", help="a checkpoint to a folder of transformers")
    add_captioner_arguments(there)
    there.add_argument("folder")
    back = commands.add_parser("from-hf", help="a folder of transformers to a checkpoint")
    back.add_argument("folder")
    back.add_argument("checkpoint", help="a .pth file to write")
    given = vars(parser.parse_args(argv))
    folder = given.pop("folder")

    def program() -> str:
        if given.pop("command") == "to-hf":
            save_hf(captioner_of(**given), folder)
            return f"wrote {folder}"
        save_checkpoint(read_hf(folder), given["checkpoint"])
        return f"wrote {given['checkpoint']}"

    return exit_code(program)


if __name__ == "__main__":
    sys.exit(main())
