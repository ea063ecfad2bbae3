"""SmileLossMixin and use_smile with releases of TRL, each in an environment of its own:

python -m tests.smile.trl_versions FOLDER [VERSION ...]

Needs uv. The environments are made in FOLDER, with the libraries of the day of the release and the
torch that is installed here, and stay there. Ends with 1 where a release trains another loss than
the definition, or does not say in one line what to type.
"""

import os
import site
import subprocess
import sys
from pathlib import Path

# The day after each release: later libraries are left out, since TRL names no highest version.
RELEASES = {
    "0.24.0": "2025-10-17",
    "0.29.1": "2026-03-21",
    "1.0.0": "2026-03-31",
    "1.5.1": "2026-05-28",
    "1.10.0": "2026-08-14",
    "1.14.2": "2026-10-07",
    "1.16.0": "2026-10-16",
}
OF_TORCH = ("functorch", "nvidia", "cuda", "torch-", "torchgen", "triton")
WAYS = {
    "padded": {"per_device_train_batch_size": 2},
    "accumulated": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
    "packed": {"packing": True, "max_length": 20},
    "mixture": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
}


def environment(folder: Path, version: str) -> str:
    """The Python of one with this TRL, made if it is not there."""
    python = folder / version / "bin" / "python"
    if not python.exists():
        subprocess.run(["uv", "venv", "-q", "-p", sys.executable, folder / version], check=True)
        (there,) = (folder / version / "lib").glob("*/site-packages")
        for entry in Path(site.getsitepackages()[0]).iterdir():
            if entry.name == "torch" or entry.name.startswith(OF_TORCH):
                (there / entry.name).symlink_to(entry)
    overrides = folder / "without_torch.txt"
    overrides.write_text("torch; sys_platform == 'never'\n")
    needed = [f"trl=={version}", "peft", "pytest", "sympy", "networkx", "setuptools"]
    latest = ["--exclude-newer", RELEASES[version], "--override", overrides]
    subprocess.run(["uv", "pip", "install", "-q", "-p", python, *latest, *needed], check=True)
    return str(python)


def outcome(train, *args) -> str:
    """right, or wrong; or the line with which it is refused."""
    try:
        return train(*args)
    except (AttributeError, TypeError, ValueError) as error:
        line = str(error)
        clear = "class Mine(SmileLossMixin" in line and "\n" not in line
        return f"refused: {line}" if clear else f"wrong: {type(error).__name__}: {line}"


def of_batches(batches, objective):
    """Loss and number of labels of a step, of its texts alone and unpadded."""
    from tests.smile.trainer_parts import definition, llama

    rows = []
    for batch in batches:
        for number, tokens in enumerate(batch["input_ids"]):
            mask = batch.get("attention_mask")
            kept = tokens == tokens if mask is None else mask[number].bool()
            begins = [0]
            if batch.get("position_ids") is not None:
                begins = (batch["position_ids"][number] == 0).nonzero().flatten().tolist()
            for begin, end in zip(begins, [*begins[1:], len(tokens)]):
                names = ("input_ids", "labels")
                row = {x: batch[x][number][begin:end][kept[begin:end]].tolist() for x in names}
                row["labels"][0] = -100
                rows.append(row)
    return definition(llama(), rows, objective)[0]


def train(cls, folder, way, from_hidden, seen) -> str:
    """Train two steps and evaluate; the first loss is that of the definition."""
    import math

    from smile import Objective
    from smile.hf import SmileLossMixin, use_smile
    from tests.smile.trainer_parts import MIXTURE, datasets, definition, llama, logs, make, rows

    objective, model, options = Objective("smile"), llama(), dict(WAYS[way])
    objective = MIXTURE if way == "mixture" else objective
    if issubclass(cls, SmileLossMixin):
        options.update(objective=objective, from_hidden=from_hidden)
    else:
        use_smile(model, objective, from_hidden)
    trainer = make(
        cls,
        folder,
        None,
        model,
        eval_dataset=datasets.Dataset.from_list(rows()[:3]),
        eval_packing=False,
        per_device_eval_batch_size=3,
        max_steps=2,
        **options,
    )
    if issubclass(cls, SmileLossMixin):  # use_smile alone refuses another loss in training only
        found = trainer.evaluate()["eval_loss"]
        expected = definition(llama(), rows()[:3], objective)[0]
        if abs(found / expected - 1) > 1e-4:
            return f"wrong: eval_loss is {found}, by the definition {expected}"
    batches, count = [], options.get("gradient_accumulation_steps", 1)
    model.register_forward_pre_hook(lambda *given: batches.append(given[-1]), with_kwargs=True)
    trainer.train()
    found, expected = logs(trainer)[0]["loss"], of_batches(batches[:count], objective)
    if abs(found / expected - 1) > 1e-4:
        return f"wrong: loss is {found}, by the definition {expected}"
    numbers = [x for entry in trainer.state.log_history for x in entry.values()]
    seen.update(name for entry in trainer.state.log_history for name in entry)
    if len(logs(trainer)) != 2 or not all(math.isfinite(float(x)) for x in numbers):
        return f"wrong: logged {trainer.state.log_history}"
    return "right"


def here(folder: str, states=(False, True)) -> bool:
    """Print what becomes of each way with the TRL that is installed; whether nothing is wrong."""
    import accelerate
    import transformers
    import trl

    from tests.smile.trainer_parts import SmileSFTTrainer

    print(f"TRL {trl.__version__}, transformers {transformers.__version__}, ", end="")
    print(f"accelerate {accelerate.__version__}")
    seen, found = set(), []
    for name, cls in (("SmileSFTTrainer", SmileSFTTrainer), ("use_smile", trl.SFTTrainer)):
        for from_hidden in states:
            outcomes = [outcome(train, cls, folder, way, from_hidden, seen) for way in WAYS]
            found += outcomes
            for line in dict.fromkeys(outcomes):
                ways = ", ".join(way for way, each in zip(WAYS, outcomes) if each == line)
                print(f"  {name}, from_hidden={from_hidden}: {ways}: {line}")
    print(
        "  logged:", *sorted(name for name in seen if "runtime" not in name and "per_" not in name)
    )
    return not any(line.startswith("wrong") for line in found)


def main(folder: str, *versions: str) -> int:
    wrong = 0
    for version in versions or RELEASES:
        python = environment(Path(folder).absolute(), version)
        command = [python, "-W", "ignore", "-m", "tests.smile.trl_versions", "--here", folder]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": os.getcwd()}, text=True, capture_output=True
        )
        lines = [x for x in done.stdout.splitlines() if x.startswith(("TRL", "  "))]
        print(*lines, *([done.stderr[-2000:]] if not lines else []), sep="\n", flush=True)
        wrong += done.returncode != 0
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1] == "--here":
        sys.exit(not here(sys.argv[2]))
    sys.exit(main(*sys.argv[1:]))
