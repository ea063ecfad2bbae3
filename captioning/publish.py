"""Check a folder of exported weights or captions, and print the command that uploads it.

    python -m captioning.publish output/hf

Uploads nothing. Prints a line for each problem: a card without a licence, weights that cannot be
read or that are pickled, missing images, paths of this machine.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from adapters import card
from adapters.program import program_parser
from captioning.data.formats import METADATA
from captioning.files.reading import read_lines
from captioning.files.tables import IMAGE
from captioning.files.writing import unfinished_writes
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.program import run_program

# A folder with one of MODEL_FILES is a model, else a folder with one of DATASET_FILES a data set.
MODEL_FILES = ("config.json", "adapter_config.json")
DATASET_FILES = ("*.parquet", METADATA[0], "*.tar")
PICKLE_FILES = ("*.pth", "*.pt", "*.bin", "*.pkl")  # they can run code when they are loaded


def repo_type_of(folder: Path) -> str:
    """Return the type of the folder's repository on the Hub: "model" or "dataset".

    Raises UserError if the folder has no file of either type.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: give one that was exported")
    if any((folder / name).is_file() for name in MODEL_FILES):
        return "model"
    if any(next(folder.glob(pattern), None) for pattern in DATASET_FILES):
        return "dataset"
    raise UserError(
        f"{folder} has neither {' or '.join(MODEL_FILES)} nor {', '.join(DATASET_FILES)}: export "
        "the checkpoint with BLIP.convert or vlm.export"
    )


def problems(folder: Path, repo_type: str) -> Iterator[str]:
    """Yield a line for each reason not to upload the folder. repo_type: from `repo_type_of`."""
    yield from _card_problems(folder / card.NAME, repo_type)
    for path in sorted({*unfinished_writes(folder), *folder.rglob("*.parts")}):
        yield f"{path} is of an unfinished run: finish the run, or remove the file"
    if repo_type == "model":
        yield from _model_problems(folder)
    else:
        yield from _parquet_problems(folder)
        yield from _metadata_problems(folder)


def _card_problems(path: Path, repo_type: str) -> Iterator[str]:
    from huggingface_hub import DatasetCard, ModelCard

    if not path.is_file():
        yield f"{path} is missing: export again, or write a card"
        return
    try:
        data = (ModelCard if repo_type == "model" else DatasetCard).load(path).data
    except Exception as error:  # YAML and the Hub's model-index raise many types
        yield f"{path}: its metadata cannot be read: {one_line(error)}"
        return
    if not data.license or data.license == card.UNKNOWN:
        yield f"{path} states no licence: set `license`, such as bsd-3-clause"
    base = data.get("base_model")
    for name in [base] if isinstance(base, str) else base or []:
        if not card.is_repository(name):
            yield f"{path}: base_model {name} is not OWNER/NAME on the Hub: correct it"


def _model_problems(folder: Path) -> Iterator[str]:
    from safetensors import SafetensorError, safe_open

    for path in filter(Path.is_file, (folder / name for name in MODEL_FILES)):
        try:
            base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
        except (ValueError, AttributeError) as error:
            yield f"{path}: not a JSON object: {one_line(error)}"
            continue
        if base and "://" not in str(base) and not card.is_repository(str(base)):
            yield f"{path}: base_model_name_or_path {base} is not OWNER/NAME on the Hub: correct it"
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        yield f"{folder} has no .safetensors: export again"
    for path in weights:
        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except (OSError, SafetensorError) as error:
            yield f"{path}: cannot be read: {one_line(error)}"
    for path in sorted(path for pattern in PICKLE_FILES for path in folder.rglob(pattern)):
        yield f"{path} is pickled, which runs code when it is loaded: remove it"


def _parquet_problems(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.parquet")):
        from pyarrow import ArrowException, parquet, types

        try:
            with parquet.ParquetFile(path) as file:
                # Read only a column of paths. Images inside the file are structs, and can be large.
                schema = [f for f in file.schema_arrow if not types.is_nested(f.type)]
                columns = [field.name for field in schema if field.name == IMAGE]
                batches = file.iter_batches(columns=columns) if columns else ()
                images = [value for batch in batches for value in batch.column(0).to_pylist()]
        except (OSError, ArrowException) as error:
            yield f"{path}: cannot be read: {one_line(error)}"
            continue
        paths = [image for image in images if isinstance(image, str) and os.path.isabs(image)]
        if paths:
            yield (
                f"{path}: {len(paths)} images are paths of this machine, the first is {paths[0]}: "
                "caption in the images' folder, or with --write-shards, which stores the images"
            )


def _metadata_problems(folder: Path) -> Iterator[str]:
    rows = list(read_lines(folder / METADATA[0]))
    names = [str(row["file_name"]) for row in rows if row and "file_name" in row]
    if len(names) < len(rows):
        yield f"{folder / METADATA[0]}: {len(rows) - len(names)} lines have no file_name"
    outside = [n for n in names if os.path.isabs(n) or os.path.normpath(n).startswith("..")]
    if outside:
        yield f"{folder}: {len(outside)} images are outside, the first is {outside[0]}"
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        yield f"{folder}: {len(missing)} images are missing, the first is {missing[0]}"


def publish(folder: Path) -> None:
    """Print the problems and raise UserError. Without problems, print the upload command."""
    repo_type = repo_type_of(folder)
    found = list(problems(folder, repo_type))
    for line in found:
        print(line)
    if found:
        raise UserError(f"{folder} is not ready: the {len(found)} lines above say why")
    print(f"{folder} is ready, and nothing was uploaded. To upload it (after `hf auth login`):")
    place = shlex.quote(str(folder))
    print(f"hf upload OWNER/{shlex.quote(folder.resolve().name)} {place} --repo-type {repo_type}")


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    parser = program_parser("python -m captioning.publish", __doc__)
    parser.add_argument("folder", type=Path, help="a folder of exported weights, or of captions")
    arguments = parser.parse_args(argv)
    return run_program(lambda: publish(arguments.folder))


if __name__ == "__main__":
    sys.exit(main())
