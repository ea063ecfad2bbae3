"""Writes the README.md of exported weights, with metadata for the Hugging Face Hub."""

import json
from pathlib import Path

DESCRIBED = ("vlm", "pretrained", "lora", "dataset", "train_file", "objective", "reward")


def write_card(folder: Path, checkpoint: str, config: dict, license: str, library: str) -> None:
    """Write the card of exported weights, unless the folder has a README.md.

    - checkpoint: the file that was exported; its scores on test, if any, are in the card
    - config: the run's configuration, {} if unknown
    - license, library: of the weights, by the Hub's names
    """
    from huggingface_hub import ModelCard

    card = folder / "README.md"
    described = {key: config[key] for key in DESCRIBED if config.get(key)}
    test = Path(checkpoint).parent / "result" / "test"
    if (test / "run.json").exists():
        scored = json.loads((test / "run.json").read_text("utf-8"))["checkpoint"]
        if Path(scored).resolve() == Path(checkpoint).resolve():
            described["test"] = json.loads((test / "metrics.json").read_text("utf-8"))["metrics"]
    metadata = f"license: {license}\nlibrary_name: {library}\npipeline_tag: image-to-text"
    text = f"# {folder.name}\n\n```json\n{json.dumps(described, indent=1)}\n```\n"
    if not card.exists():
        ModelCard(f"---\n{metadata}\n---\n\n{text}").save(card)
