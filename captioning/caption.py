"""Caption a photo, a folder, a list or tar shards with a checkpoint.

    python -m captioning.caption output/caption_coco photos --out captions.jsonl
    python -m captioning.caption Qwen/Qwen2.5-VL-7B photos --out captions.jsonl \\
        --backend openai --url http://localhost:8000/v1
    python -m captioning.caption blip.pth 'shards/{00000..00099}.tar' --out captions.jsonl \\
        --config configs/caption_coco.yaml --num_beams 5 --num_return 3

Writes one JSON line per image. The same command continues a run that was stopped. --engine ray uses
several GPUs and machines. See docs/captioning.md.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import contextlib
import importlib.util
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

import torch

from adapters.card import UNKNOWN
from adapters.program import program_parser
from captioning.bulk import filtering, served, stored_output
from captioning.bulk.cluster import Cluster
from captioning.bulk.filtering import FilteredModel
from captioning.bulk.local_engine import LocalEngine
from captioning.bulk.model import CaptionerLoader, CheckpointModel
from captioning.bulk.ray_engine import RayEngine
from captioning.bulk.request import Request
from captioning.bulk.run import BulkCaptioning
from captioning.config import Config, keys_of
from captioning.config.rerankers import RERANKERS
from captioning.files import stores
from captioning.files.images import is_image
from captioning.models import checkpoints
from captioning.models.precision import DTYPES
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import leave, run_program, show_warnings
from captioning.runtime.progress import log_line

# {configuration key of decoding: help of the flag with the same name}. The key `sample` is not
# here, because its flag has another name, --do_sample.
DECODING = {
    "num_beams": "beams; 1 is greedy",
    "max_length": "most tokens of a caption, including the prompt",
    "min_length": "fewest tokens of a caption",
    "length_penalty": "for beams: above 0 favours longer captions",
    "repetition_penalty": "above 1 disfavours tokens that the caption already has",
    "no_repeat_ngram_size": "n-grams of this many tokens occur once in a caption",
    "num_beam_groups": "groups of diverse beam search",
    "diversity_penalty": "for a token that another group has just chosen",
    "top_p": "sample from the likeliest tokens that together have this probability",
    "top_k": "sample from this many tokens at most; 0 means all",
    "temperature": "temperature of sampling",
    "min_p": "sample from tokens with at least this fraction of the best one's probability",
    "typical_p": "sample from the typical tokens that together have this probability",
    "rerank": f"choose among candidates by {', '.join(RERANKERS)}",
    "num_candidates": "candidates per image",
    "candidates": "samples or beams",
    "rerank_weight": "weight of log p(caption without image) in mmi and judge, 0 to 1",
    "rerank_judge": "checkpoint of the judge",
    "guidance_scale": "scale of classifier-free guidance; 1 switches it off",
    "contrastive_alpha": "alpha of visual contrastive decoding; 0 switches it off",
    "contrastive_beta": "its minimum probability of a token, as a share of the best one's",
    "contrastive_noise": "its noise: a diffusion step out of 1,000",
}
# An unfinished run continues only if the input, the captioner's settings and the values of these
# flags are the same.
IDENTITY_FLAGS = (
    "config",
    "num_return",
    "existing",
    "captions",
    "prefix",
    "suffix",
    "sidecar",
    "language",
    "write_shards",
    "glob",
    "root",
    "column",
    "recursive",
)
# Flags that set the configuration key of the same name.
CONFIG_FLAGS = (*DECODING, "seed", "num_workers", "precision")


def build_parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m captioning.caption",
        __doc__,
        usage="%(prog)s CHECKPOINT INPUT --out FILE [options]; --help lists them",
    )
    _add_run_flags(parser.add_argument)
    group = parser.add_argument_group
    _add_decoding_flags(group("decoding (default: as in the checkpoint's run)").add_argument)
    _add_served_model_flags(group("a served model (CHECKPOINT is its name)").add_argument)
    _add_input_flags(group("which images").add_argument)
    _add_output_flags(group("what is written").add_argument)
    return parser


def _add_run_flags(add: Callable) -> None:
    add(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a run's folder, a file (path, URL or hf://), or a name",
    )
    add(
        "input", metavar="INPUT", help="photo, folder, list (.txt .csv .json .jsonl) or .tar shards"
    )
    add("--out", required=True, help="a .jsonl file, on disk or in a store")
    add("--config", help="a YAML file, for a checkpoint without a configuration")
    add("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if any")
    add("--precision", choices=tuple(DTYPES), help="default: bf16 on a GPU, else fp32")
    add("--batch_size", type=int, help="images per batch; default: as configured")
    add("--num_workers", type=int, help="processes that read images; default: as configured")
    add("--engine", choices=("process", "ray"), help="default: one process; ray for several GPUs")
    add("--ray-address", "--ray_address", metavar="HOST:PORT", help="a cluster's address, or auto")


def _add_decoding_flags(add: Callable) -> None:
    for name, help_text in DECODING.items():
        value_type = Config.model_fields[name].annotation
        value_type = value_type if value_type in (int, float) else str
        add(f"--{name}", type=value_type, help=help_text)
    add("--clip_model", help="of --rerank clip; default: OpenAI's ViT-B/32")
    add("--do_sample", action="store_true", help="sample instead of searching")
    add("--seed", type=int, help="seed of sampling")
    add("--num_return", "--num_return_sequences", type=int, default=1, help="captions per image")


def _add_served_model_flags(add: Callable) -> None:
    add("--backend", choices=("checkpoint", "openai"), default="checkpoint")
    add("--url", help="a server with OpenAI's chat interface: http://host:8000/v1")
    add("--prompt", help=f"with {{columns}} of a list; default: {served.PROMPT!r}")
    add("--concurrency", type=int, help=f"requests at once; default: {served.DEFAULT_CONCURRENCY}")


def _add_input_flags(add: Callable) -> None:
    add("--recursive", action=argparse.BooleanOptionalAction, default=True, help="read subfolders")
    add("--glob", help="files of a folder, such as '*.jpg' or 'cats/*'")
    add("--root", type=_location, help="folder of a list's paths; default: the list's own folder")
    add("--column", help="a list's column of paths; default: image, path, ...")
    add(
        "--existing",
        choices=("skip", "overwrite"),
        default="skip",
        help="what to do with images that have a caption",
    )
    add("--captions", help="existing captions, in any training format")
    add("--retry-failed", "--retry_failed", action="store_true", help="retry images that failed")
    add("--verify", action="store_true", help="find gaps, and repair them")
    add("--restart", action="store_true", help="abandon an unfinished run")


def _add_output_flags(add: Callable) -> None:
    add("--prefix", default="", help="put before each caption")
    add("--suffix", default="", help="put after each caption")
    add(
        "--sidecar",
        nargs="?",
        const=".txt",
        metavar=".EXT",
        help="write text files (or .xmp) next to the photos",
    )
    add("--language", metavar="TAG", help="the captions' language, such as en")
    add("--write-shards", "--write_shards", type=_location, metavar="FOLDER")
    add("--filter", metavar="'itm>0.5'", help="move captions with a lower score to another file")
    add("--itm_model", help="for --filter and --rerank itm: a retrieval checkpoint of BLIP")
    add("--parquet", type=_location, metavar="FILE")
    add("--metadata", type=_location, metavar="FILE", help="metadata.jsonl of the datasets library")
    add("--kohya", type=_location, metavar="FILE", help="JSON of kohya's trainers; other keys stay")
    add("--license", default=UNKNOWN, help="of the cards of data sets")
    add("--shard_size", type=int, help="images per shard, for a folder or list")


def _location(text: str) -> str:
    """Return a path or a store address without redundant slashes."""
    return text.rstrip("/") if stores.is_store(text) else str(Path(text))


def parse_arguments(argv=None) -> argparse.Namespace:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    minimums = {
        "batch_size": 1,
        "num_workers": 0,
        "num_return": 1,
        "shard_size": 1,
        "seed": 0,
        "concurrency": 1,
    }
    for name, minimum in minimums.items():
        value = getattr(arguments, name)
        if value is not None and value < minimum:
            parser.error(f"--{name} is {value}; it has to be {minimum} or more")
    if arguments.verify and arguments.existing != "skip":
        parser.error(
            f"--verify keeps existing captions, --existing {arguments.existing} does not: leave "
            "one of them out"
        )
    if arguments.clip_model and arguments.rerank != "clip":
        parser.error("--clip_model goes with --rerank clip")
    if arguments.backend == "openai" and arguments.engine == "ray":
        parser.error("--engine ray is for a checkpoint; --backend openai has --concurrency")
    if arguments.ray_address and arguments.engine != "ray":
        parser.error("--ray-address needs --engine ray")
    extension = arguments.sidecar
    if extension is not None and not re.fullmatch(r"\.[^/]*[^/.]", extension):
        parser.error(f"--sidecar is {extension!r}; it has to be an extension such as .txt")
    if extension is not None and is_image(f"image{extension}"):
        parser.error(f"--sidecar {extension} would replace photos; use an extension such as .txt")
    if arguments.language and not re.fullmatch(r"[a-zA-Z]{2,8}(-\w{1,8})*", arguments.language):
        parser.error(f"--language is {arguments.language!r}; expected a tag such as en")
    return arguments


def config_changes(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return {configuration key: value} for the flags that are set.

    These values replace those in the checkpoint's configuration. The precision is always included:
    by default bf16 on a GPU, else fp32.
    """
    values = {name: getattr(arguments, name) for name in CONFIG_FLAGS}
    reranker = RERANKERS.get(arguments.rerank)
    if reranker and reranker.model:
        values[reranker.model] = getattr(arguments, reranker.model)
    values["eval_batch_size"] = arguments.batch_size
    values["sample"] = arguments.do_sample or None
    if arguments.precision is None:
        values["precision"] = "bf16" if device.type == "cuda" else "fp32"
    elif arguments.precision == "int8":
        values["compile"] = False
    return {name: value for name, value in values.items() if value is not None}


def choose_cluster(arguments: argparse.Namespace) -> Optional[Cluster]:
    """Return the Ray cluster to caption on; None to caption in this process.

    Without --engine and --device, all GPUs of this machine are used if Ray is installed. Raises
    UserError.
    """
    if arguments.engine is None and arguments.device == "auto" and torch.cuda.device_count() > 1:
        if importlib.util.find_spec("ray"):
            return Cluster(None, "auto")
        gpus = torch.cuda.device_count()
        log_line(f"captioning on one of {gpus} GPUs; to use all of them: pip install ray")
    if arguments.engine != "ray":
        return None
    return Cluster(arguments.ray_address or os.environ.get("RAY_ADDRESS"), arguments.device)


def checkpoint_loader(arguments: argparse.Namespace, device: torch.device) -> CaptionerLoader:
    """Return the loader of a checkpoint. Raises UserError."""
    checkpoint = checkpoints.resolve(arguments.checkpoint)
    changes = config_changes(arguments, device)
    speed_keys = keys_of("speed")
    identity = {
        "checkpoint": stores.without_secrets(checkpoint),
        "checkpoint_time": checkpoints.version_of(checkpoint),
        **{name: value for name, value in changes.items() if name not in speed_keys},
    }
    for key in ("rerank_judge", "itm_model"):
        if key in changes:
            identity[key] = stores.without_secrets(changes[key])
            identity[f"{key}_time"] = checkpoints.version_of(changes[key])
    load = partial(
        CheckpointModel, checkpoint, arguments.config, changes, arguments.num_return, device
    )
    return CaptionerLoader(identity, load)


def with_filter(
    arguments: argparse.Namespace, loader: CaptionerLoader, device: torch.device
) -> CaptionerLoader:
    """Return a loader that also loads the filter. Raises UserError."""
    itm_model = arguments.itm_model
    default = "bf16" if device.type == "cuda" else "fp32"
    dtype = DTYPES[arguments.precision or default]
    dtype = torch.float32 if dtype == torch.int8 else dtype
    identity = {
        **loader.identity,
        "filter": arguments.filter,
        "itm_model": stores.without_secrets(itm_model),
        "itm_model_time": checkpoints.version_of(itm_model),
    }
    load = partial(FilteredModel, arguments.filter, itm_model, device, dtype, loader.load)
    return CaptionerLoader(identity, load)


def caption(arguments: argparse.Namespace) -> None:
    """Caption the input. Raises UserError, Stopped."""
    itm_model = arguments.itm_model if arguments.filter or arguments.rerank != "itm" else None
    arguments.filter = filtering.checked_filter(arguments.filter, itm_model)
    fields = set(Request.__dataclass_fields__) - {"source", "out", "address"}
    out, address = stored_output.local_path_and_address(arguments.out)
    values = {name: getattr(arguments, name) for name in fields}
    request = Request(arguments.input, out, address=address, **values)
    served.check_flags(arguments, DECODING)
    if distributed.env_world_size() > 1:
        raise UserError("torchrun is not supported here; use --engine ray for several processes")
    is_served = arguments.backend == "openai"
    cluster = None if is_served else choose_cluster(arguments)
    with contextlib.closing(cluster) if cluster else contextlib.nullcontext():
        if cluster:
            device = cluster.device
        elif is_served:
            device = distributed.start("auto" if arguments.filter else "cpu")
        else:
            device = distributed.start(arguments.device)
        if is_served:
            loader = served.model_loader(arguments)
        else:
            loader = checkpoint_loader(arguments, device)
        if arguments.filter:
            loader = with_filter(arguments, loader, device)
        flags = {name: getattr(arguments, name) for name in IDENTITY_FLAGS}
        identity = {**loader.identity, **flags, "input": _location(arguments.input)}
        engine = RayEngine(cluster, loader.load) if cluster else LocalEngine(loader.load)
        BulkCaptioning(request, identity, engine, arguments.restart).run()


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    arguments = parse_arguments(argv)
    show_warnings()
    return run_program(lambda: caption(arguments))


if __name__ == "__main__":
    leave(main())
