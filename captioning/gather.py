"""Gather the weights of a sharded checkpoint into one file, for programs that need a file.

    python -m captioning.gather output/vlm_coco/checkpoint_best.pth whole.pth

The file also contains the rest of the checkpoint, except the optimizer state. Run this program in
one process.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import sys
from pathlib import Path

from adapters.program import program_parser
from BLIP import read_checkpoint
from captioning.files.stores import without_secrets
from captioning.models import checkpoints
from captioning.runtime.errors import UserError, value_errors_as_user_errors
from captioning.runtime.program import run_program
from captioning.runtime.progress import log_line


def gather(source: str, path: Path) -> None:
    """Write the checkpoint `source` to the file `path`. Raises UserError."""
    if path.exists():
        raise UserError(f"{path} exists already: choose another file name")
    with value_errors_as_user_errors():
        content = read_checkpoint(source)
    content.pop("optimizer", None)
    checkpoints.save(content, path)
    log_line(f"{path} holds the weights of {without_secrets(source)}")


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    parser = program_parser("python -m captioning.gather", __doc__)
    parser.add_argument("checkpoint", help="a sharded checkpoint, or the folder of a run")
    parser.add_argument("file", type=Path, help="the file to write")
    arguments = parser.parse_args(argv)
    return run_program(lambda: gather(checkpoints.resolve(arguments.checkpoint), arguments.file))


if __name__ == "__main__":
    sys.exit(main())
