"""The runs of a sweep: checked before any begins, trained where they are not done, drawn."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.config import Config, load_config
from captioning.files.writing import write_text
from captioning.models import checkpoints
from captioning.report.comparison import compare
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from captioning.sweep.frontier import Entry, draw_frontier, markdown_table
from captioning.sweep.one_run import without_pretrained
from captioning.sweep.programs import Program, run_programs, slots
from captioning.sweep.variants import Variant, mle_share, varied_keys
from captioning.training.validation_history import is_done

PRETRAIN = "pretrain"
# What the sweep sets by itself, besides what its runs differ in.
OWN_KEYS = ("output_dir", "resume")


class Sweep:
    """The variants of one configuration, each in a folder of its own within `folder`.

    pretrain: a configuration that is trained first, in the folder of that name; the others start
    from its best checkpoint. Raises UserError where a key is the sweep's own or impossible.
    """

    def __init__(
        self,
        config: str,
        pretrain: Optional[str],
        folder: Path,
        keys: Sequence[str],
        variants: list[Variant],
    ):
        for key in (key.partition("=")[0] for key in keys):
            if key in {*OWN_KEYS, *varied_keys()} or (pretrain and key == "pretrained"):
                raise UserError(f"{key} is what the runs differ in, or the sweep sets it itself")
        self.config, self.pretrain, self.folder, self.keys = config, pretrain, folder, list(keys)
        if pretrain:
            self._load(pretrain, PRETRAIN, keys)
        self.variants = variants
        self.trained: dict[str, Config] = {}
        self.scored: dict[str, Config] = {}
        for name, _, overrides, _ in variants:
            given = self._overrides(name, overrides)
            self.trained[name] = self._load(config, name, given)
            self.scored[name] = self._load(config, name, without_pretrained(given))

    def done(self) -> list[tuple[Variant, Path]]:
        """The variants that are trained and scored, and their folders."""
        found = [v for v in self.variants if is_done(self.trained[v.name], self.scored[v.name])]
        return [(variant, self.folder / variant.name) for variant in found]

    def train(self, jobs: Optional[int]) -> dict[str, str]:
        """Do what is not done, `jobs` at a time; why, by name, of the runs that failed."""
        finished = {variant.name for variant, _ in self.done()}
        left = [variant for variant in self.variants if variant.name not in finished]
        say(f"runs in {self.folder}: {len(self.variants)}, of which {len(finished)} are done")
        if not left:
            return {}
        free = slots(self.trained[left[0].name].device, jobs)
        if self.pretrain:
            program = ["-m", "captioning.train", "--config", self.pretrain]
            failed = run_programs([self._program(PRETRAIN, program, ())], free[:1])
            if failed:
                raise UserError(f"{PRETRAIN} failed: {failed[PRETRAIN]}")
        program = ["-m", "captioning.sweep.one_run", "--config", self.config]
        return run_programs([self._program(v.name, program, v.overrides) for v in left], free)

    def _program(self, name: str, program: list[str], overrides: Sequence[str]) -> Program:
        folder = ["--output_dir", str(self.folder / name)]
        command = [sys.executable, *program, *folder, *self._overrides(name, overrides)]
        return Program(name, command, self.folder / f"{name}.log")

    def _load(self, config: str, name: str, overrides: Sequence[str]) -> Config:
        flags = {"output_dir": str(self.folder / name)}
        return load_config(config, overrides, flags)

    def _overrides(self, name: str, overrides: Sequence[str]) -> list[str]:
        given = [*self.keys, *overrides]
        if self.pretrain and name != PRETRAIN:
            given.append(f"pretrained={self.folder / PRETRAIN / checkpoints.BEST}")
        return given


def draw(done: Sequence[tuple[Variant, Path]], collected: Sequence[Path], folder: Path) -> None:
    """Write frontier.svg and table.md of the finished runs, and print the table.

    collected: folders of runs from elsewhere, which are called what the report calls them. Raises
    UserError for what is no run.
    """
    folders = [*(path for _, path in done), *collected]
    comparison = compare(folders)
    runs = comparison.rows[-len(folders) :]
    entries = [Entry(comparison.human, comparison.human.label)] if comparison.human else []
    for (variant, _), row in zip(done, runs):
        entries.append(Entry(row, variant.label, variant.weight))
    for run, row in zip(comparison.runs[len(done) :], runs[len(done) :]):
        entries.append(Entry(row, run.label, mle_share(run.config) if run.trained else None))
    for line in comparison.missing:
        say(line)
    folder.mkdir(parents=True, exist_ok=True)
    table = markdown_table(entries)
    write_text(table, folder / "table.md")
    print(table, end="")
    figure = folder / "frontier.svg"
    if draw_frontier(entries, figure) is None:
        say("fewer than two of them have an accuracy and a descriptiveness to draw: no figure")
    else:
        say(f"the figure is {figure}, the table {folder / 'table.md'}")
