"""Export the weights of a run's checkpoint to other programs.

    python -m captioning.export output/vlm_coco/checkpoint_best.pth output/merged
    python -m captioning.export output/lora_coco/checkpoint_best.pth output/merged.pth
    python -m captioning.export output/lora_coco/checkpoint_best.pth output/adapter --adapter

LoRA is merged into the weights. Of model vlm, the target is a folder for `from_pretrained` of
transformers and for vLLM; of other models it is a file with whole weights, under the released
names of BLIP. With --adapter it is a folder with only the LoRA adapter, for
`PeftModel.from_pretrained`.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from BLIP.card import write_card
from BLIP.checkpoint import ADAPTER, FILES, RUN, read_checkpoint, run_config
from BLIP.writing import atomic_write
from captioning.files.stores import without_secrets
from captioning.files.writing import write_json
from captioning.models.build import captioner_from, trained_config
from captioning.models.checkpoints import resolve
from captioning.runtime.errors import UserError, value_errors_as_user_errors
from captioning.runtime.program import program_parser, run_program
from captioning.runtime.progress import log_line


@value_errors_as_user_errors()
def export(checkpoint: str, target: Path, adapter: bool, license: str) -> None:
    """Write a new file or folder. Raises UserError.

    - adapter: write only the LoRA adapter
    - license: the license of the weights, for the folder's card
    """
    if target.exists():
        raise UserError(f"{target} exists already: choose another path")
    checkpoint = resolve(checkpoint)
    content, name = read_checkpoint(checkpoint), without_secrets(checkpoint)
    if adapter and ADAPTER not in content:
        raise UserError(f"{name} has whole weights, not an adapter: leave out --adapter")
    # Without `lora`, the adapter is merged, and weights in 4 bits are read whole.
    config = trained_config(checkpoint, None, {"lora": None})
    captioner = None if adapter else captioner_from(config, checkpoint)[0]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    with atomic_write(target) as path:
        if adapter:
            path.mkdir()
            save_file(content["model"], path / "adapter_model.safetensors", {"format": "pt"})
            write_json(content[ADAPTER], path / "adapter_config.json")
            run = {key: content[key] for key in ("config", FILES) if key in content}
            write_json(run, path / RUN)
        elif hasattr(captioner, "save_pretrained"):
            captioner.save_pretrained(path)
        else:
            weights = {"model": captioner.state_dict(), "config": config.model_dump()}
            torch.save({**weights, **captioner.saved_beside_weights()}, path)
        if path.is_dir():
            library = "peft" if adapter else "transformers"
            write_card(path, name, run_config(content), license, library)
    log_line(f"{target} holds {'the adapter of ' if adapter else ''}{name}")


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    parser = program_parser("python -m captioning.export", __doc__)
    parser.add_argument("checkpoint", help="a run's folder or checkpoint")
    parser.add_argument("target", type=Path, help="the file or folder to write")
    parser.add_argument("--adapter", action="store_true", help="write only the LoRA adapter")
    parser.add_argument("--license", default="unknown", help="for the card of a folder")
    arguments = vars(parser.parse_args(argv))
    return run_program(lambda: export(**arguments), "stopped")


if __name__ == "__main__":
    sys.exit(main())
