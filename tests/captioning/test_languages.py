"""A small BLIP learns captions of a language with its own vocabulary, by the programs."""

import json

import pytest
from PIL import Image
from tokenizers import BertWordPieceTokenizer

from tests.markers import slow
from tests.programs import run_program
from tests.tiny import SPECIAL_TOKENS, TINY_RUN

pytestmark = pytest.mark.usefixtures("no_java")
COLOURS = ("red", "green", "blue", "white")
CAPTIONS = {
    "zh": ("一张照片：", ["一只红色的狗", "两个人，一辆绿色的车", "3片海", "“白”……色的 cat"]),  # noqa: RUF001
    "ko": ("사진 ", ["빨간 개가 달린다", "두 사람과 자동차", "푸른 바다", "고양이 한 마리"]),
    "de": ("Ein Bild von ", ["Ein schöner Hund", "Zwei Männer", "Das Meer", "Eine weiße Katze"]),
}


LEARNING = "captions_per_image=1 init_lr=1e-2 max_epoch=40 eval_every=40 objective=mle"
LEARNING += " augmentation=none min_length=1 device=cpu"


@pytest.mark.parametrize("language", ["zh", slow("ko"), slow("de")])
def test_captions_of_a_language_from_training_to_bulk_captioning(tmp_path, language):
    (prompt, captions), run = CAPTIONS[language], tmp_path / "run"
    rows = [{"image": f"{n}.png", "caption": captions[n % 4]} for n in range(16)]
    for row, colour in zip(rows, COLOURS * 4):
        Image.new("RGB", (32, 32), colour).save(tmp_path / row["image"])
    for split, part in {"train": rows, "val": rows[:4], "test": rows[4:8]}.items():
        (tmp_path / f"scenes_{split}.json").write_text(json.dumps(part))
    tokenizer = BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    kinds = {"vocab_size": 200, "min_frequency": 1, "special_tokens": SPECIAL_TOKENS}
    tokenizer.train_from_iterator([prompt, *captions], **kinds, show_progress=False)
    tokenizer.save_model(str(tmp_path))
    as_written = {"do_lower_case": False, "strip_accents": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(as_written))
    (tmp_path / "run.yaml").write_text(TINY_RUN.format(data=tmp_path))
    own = [f"prompt={prompt}", f"language={language}", f"output_dir={run}"]
    given = ["--config", tmp_path / "run.yaml", *LEARNING.split(), *own]
    for flags in ((), ("--evaluate", "--eval_split", "test")):
        done = run_program("captioning.train", *given, *flags)
        assert done.code == 0 and "unknown" not in done.err
    scored = json.loads((run / "result/test.json").read_text())
    assert [row["caption"] for row in scored] == captions
    summary = json.loads((run / "result/test/metrics.json").read_text())
    assert summary["settings"]["language"] == language
    assert summary["metrics"]["Bleu_1"]["value"] == pytest.approx(1)
    out = tmp_path / "captions.jsonl"
    assert run_program("captioning.caption", run, tmp_path, "--out", out).code == 0
    rows = map(json.loads, out.read_text().splitlines())
    found = {row["image"].rpartition("/")[2]: row["caption"] for row in rows}
    assert found == {f"{number}.png": captions[number % 4] for number in range(16)}
