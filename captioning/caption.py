"""Caption photos, folders, lists or tar shards with a checkpoint.

    bash scripts/caption.sh output/caption_coco photos --out captions.jsonl num_beams=5
    bash scripts/caption.sh blip.pth 'shards/{00000..00099}.tar' --out captions.jsonl \\
        --config configs/caption_coco.yaml --num_return 3
    bash scripts/caption.sh Qwen/Qwen2.5-VL-7B photos --out captions.jsonl \\
        --url http://localhost:8000/v1

Writes one JSON line per image. The same command continues a run that was stopped. A machine's GPUs
are all used, by torchrun; --engine ray uses those of a cluster. See docs/captioning.md.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from captioning.bulk import ray_engine, served
from captioning.bulk.filtering import load_filtered, normal_filter
from captioning.bulk.model import CheckpointModel
from captioning.bulk.request import Request
from captioning.bulk.run import BulkCaptioning
from captioning.config import keys_of, parse_overrides
from captioning.files import stores
from captioning.files.columns import normal_name
from captioning.models import checkpoints
from captioning.models.precision import DTYPES
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import (
    add_model_flags,
    exit_without_cleanup,
    positive,
    program_parser,
    run_program,
    show_warnings,
)

# An unfinished run continues only if the values of these arguments are the same.
IDENTITY = (
    *("config", "num_return", "existing", "captions", "prefix", "suffix", "sidecar"),
    *("write_shards", "shard_size", "glob", "root", "recursive", "filter"),
)


def build_parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "bash scripts/caption.sh",
        __doc__,
        usage="%(prog)s CHECKPOINT INPUT ... --out FILE [key=value ...] [options]",
    )
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a run's folder, a file (path, URL or hf://)")
    add("sources", metavar="INPUT", nargs="+", help="photo, folder, list, .parquet or .tar shards")
    add("--out", type=normal_name, required=True, help="a .jsonl file, on disk or in a store")
    add_model_flags(parser)
    add("--num_return", type=positive, default=1, help="captions per image")
    add("--engine", choices=("process", "ray"), default="process", help="ray: a Ray cluster")
    _add_input_flags(parser.add_argument_group("which images").add_argument)
    _add_output_flags(parser.add_argument_group("what is written").add_argument)
    add = parser.add_argument_group("a served model (CHECKPOINT is its name)").add_argument
    add("--url", help="a server with OpenAI's chat interface: http://host:8000/v1")
    add("--prompt", help=f"with {{columns}} of a list; default: {served.PROMPT!r}")
    add("--concurrency", type=positive, help=f"requests at once; default: {served.CONCURRENCY}")
    return parser


def _add_input_flags(add) -> None:
    add("--recursive", action=argparse.BooleanOptionalAction, default=True, help="read subfolders")
    add("--glob", help="files of a folder, such as '*.jpg' or 'cats/*'")
    add("--root", type=normal_name, help="folder of a list's paths; default: the list's own")
    add("--existing", choices=("skip", "overwrite"), default="skip", help="captions that exist")
    add("--captions", type=normal_name, help="existing captions, in any training format")
    add("--retry-failed", "--retry_failed", action="store_true", help="retry images that failed")
    add("--restart", action="store_true", help="abandon an unfinished run")


def _add_output_flags(add) -> None:
    add("--prefix", default="", help="put before each caption")
    add("--suffix", default="", help="put after each caption")
    add("--sidecar", nargs="?", const=".txt", metavar=".EXT", help="text files beside the photos")
    add("--write-shards", "--write_shards", type=normal_name, metavar="FOLDER", help="for tars")
    add("--shard_size", type=positive, default=256, help="images in a unit of work and a shard")
    add("--filter", metavar="'itm>0.5'", help="move captions with a lower score to another file")
    add("--itm_model", help="a retrieval checkpoint of BLIP, for --filter")
    add("--parquet", type=normal_name, metavar="FILE", help="a table of the lines")
    add("--metadata", type=normal_name, metavar="FILE", help="metadata.jsonl of `datasets`")


def parse_arguments(argv: Sequence[str]) -> Request:
    """Return the arguments; `overrides` has the arguments of the form key=value."""
    parser = build_parser()
    arguments = parser.parse_intermixed_args(argv, Request())
    words = arguments.sources
    overrides = [word for word in words if re.match(r"\w+=", word) and not os.path.exists(word)]
    arguments.sources = [normal_name(word) for word in words if word not in overrides]
    arguments.overrides = overrides
    if not arguments.sources:
        parser.error("INPUT is missing: a photo, folder, list, .parquet or .tar shards")
    return arguments


def checkpoint_loader(arguments: Request, changes: dict[str, Any], device: torch.device):
    """Return the settings that identify the captioner, and a function that loads it.

    changes: {configuration key: value}. Raises UserError.
    """
    if arguments.prompt is not None or arguments.concurrency is not None:
        raise UserError("--prompt and --concurrency are for a served model, with --url")
    changes.setdefault("precision", "bf16" if device.type == "cuda" else "fp32")
    if changes["precision"] == "int8":
        changes["compile"] = False
    arguments.checkpoint = normal_name(checkpoints.resolve(arguments.checkpoint))
    speed = keys_of("speed")
    settings = {key: value for key, value in changes.items() if key not in speed}
    settings.update(_model_settings("checkpoint", arguments.checkpoint))
    return settings, partial(CheckpointModel, arguments, changes, device)


def _model_settings(key: str, model: str) -> dict[str, Any]:
    return {key: stores.without_secrets(model), f"{key}_time": checkpoints.version_of(model)}


def caption(arguments: Request) -> None:
    """Caption the input. Raises UserError, Stopped."""
    changes = parse_overrides(arguments.overrides)
    if bool(arguments.filter) != bool(arguments.itm_model):
        raise UserError("--filter and --itm_model, a retrieval checkpoint of BLIP, go together")
    cluster_device = None
    if arguments.engine == "ray":
        cluster_device = device = ray_engine.connect(arguments.device)
    else:
        is_served = arguments.url and not arguments.filter
        device = distributed.start("cpu" if is_served else arguments.device)
    if arguments.url:
        settings, load = served.loader(arguments, changes)
    else:
        settings, load = checkpoint_loader(arguments, changes, device)
    if arguments.filter:
        arguments.filter = normal_filter(arguments.filter)
        precision = changes.get("precision", "int8")
        dtype = torch.float32 if precision == "int8" else DTYPES[precision]
        load = partial(load_filtered, load, arguments.filter, arguments.itm_model, device, dtype)
    settings |= {name: getattr(arguments, name) for name in IDENTITY}
    if itm_model := arguments.itm_model or changes.get("itm_model"):
        settings.update(_model_settings("itm_model", itm_model))
    settings["input"] = arguments.sources
    BulkCaptioning(arguments, settings, load, cluster_device).run()


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    show_warnings()
    return run_program(lambda: caption(arguments))


if __name__ == "__main__":
    exit_without_cleanup(main())
