"""The scoring program: what it prints, what it writes, and how it refuses."""

import json
from functools import partial

import pytest

from tests.programs import one_error_line, refused, run_program, unchanged

pytestmark = pytest.mark.usefixtures("no_java")
evaluate = partial(run_program, "captioning.evaluate")
REFERENCES = {"5": ["a man on a horse", "a rider"], "6": ["two cats on a sofa"], "7": ["a bus"]}


@pytest.fixture
def files(tmp_path):
    """Return a function that writes predictions and references, and gives the arguments."""

    def write(predictions=({"image_id": 5, "caption": "a man"},), references=REFERENCES):
        arguments = [tmp_path / "results.json", "--references", tmp_path / "references.json"]
        arguments[0].write_text(json.dumps(predictions))
        arguments[2].write_text(json.dumps(references))
        return [str(argument) for argument in arguments]

    return write


def test_captions_are_scored_printed_and_recorded(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    captions = {5: "a man on a horse", 6: "😀\u2028\ud83d"}
    arguments = files([{"image_id": i, "caption": c} for i, c in captions.items()])
    done = evaluate(*arguments, "--output_dir", "out dir")
    assert done.code == 0
    *rows, intervals, note, remark, _, skipped = done.out.splitlines()
    shown = {row[:9].strip(): row[10:].split() for row in rows}
    assert list(shown)[:3] == ["Cap. Len.", "Lex. Div.", "BLEU-1"]
    assert shown["METEOR"] == ["-"] and shown["ROUGE-L"] == ["0.500", "±0.500"]
    assert shown["CIDEr"][1] == "±2.500" and remark.startswith("CIDEr weights words by how rare")
    assert intervals == "±: half of the 95 % interval over images"
    assert note == "2 captions, tokenizer: regex (no Java)"
    assert skipped.startswith("METEOR skipped: no Java: there is no `java` on PATH")
    warning = "warning: 1 of 3 images with references have no prediction and were not scored\n"
    assert done.err == warning

    metrics, captions = (tmp_path / "out dir" / n for n in ("metrics.json", "per_caption.jsonl"))
    summary = json.loads(metrics.read_text())
    assert summary["metrics"]["ROUGE_L"] == {"value": 0.5, "low": 0.0, "high": 1.0, "n": 2}
    assert summary["metrics"]["lex_div"] == {"value": 0.005, "low": None, "high": None, "n": 2}
    assert list(summary) == ["metrics", "settings", "skipped", "command", "versions"]
    assert summary["settings"]["tokenizer"] == "regex (no Java)"
    assert "1000 resamples" in summary["settings"]["intervals"]
    assert list(summary["skipped"]) == ["METEOR"]
    assert summary["command"].startswith("python -m captioning.evaluate ")
    assert summary["command"].endswith("--output_dir 'out dir'")
    assert summary["versions"]["pycocoevalcap"] and summary["versions"]["java"] is None
    first, second = map(json.loads, captions.read_text().splitlines())
    assert (first["image_id"], first["caption"]) == (5, "a man on a horse")
    assert second["caption"] == "😀\u2028\ud83d"
    assert first["ROUGE_L"] == 1.0 and second["ROUGE_L"] == second["CIDEr"] == 0.0
    assert (first["cap_len"], second["cap_len"]) == (5, 2)


def rows(*ids):
    return [{"image_id": image_id, "caption": f"caption {image_id}"} for image_id in ids]


def test_predictions_of_other_images_are_one_line_and_leave_earlier_scores(files, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.json").write_text("{}")
    arguments = files(rows(8, 9))
    line = "predictions and references have no image id in common: the first ones are 8 and '5'"
    with unchanged(tmp_path):
        refused("captioning.evaluate", *arguments, "--output_dir", tmp_path / "out", part=line)


def test_images_on_one_side_alone_are_counted_and_the_others_are_scored(files, tmp_path):
    arguments = files(rows("x", 6, 9, 6))  # one of them twice
    options = ["--metrics", "length", "diversity", "--output_dir", tmp_path / "out"]
    code, out, err = evaluate(*arguments, *options)
    assert code == 0 and "1 captions" in out
    assert len((tmp_path / "out/per_caption.jsonl").read_text().splitlines()) == 1
    assert err == (
        f"warning: {arguments[0]}: 2 of 3 images with a prediction have no references and were "
        "not scored, the first is 'x'\nwarning: 2 of 3 images with references have no prediction "
        "and were not scored\n"
    )


def test_without_references_only_what_needs_none_is_scored(files, tmp_path):
    predictions, *_ = files([{"image_id": "a.jpg", "caption": "a man"}])
    metrics = ["--metrics", "coco", "length", "diversity", "--output_dir", tmp_path / "out"]
    done = evaluate(predictions, *metrics)
    assert (done.code, done.err) == (0, "")
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert {"cap_len", "lex_div", "distinct_captions"} <= summary["metrics"].keys()
    assert not summary["metrics"].keys() & {"Bleu_1", "CIDEr", "vocab_use"}
    assert set(summary["skipped"].values()) == {"without references"}
    assert "CIDEr, Vocab. Use skipped: without references" in done.out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.jsonl", '{"image": "a/5.jpg", "captions": ["a man", "a boy"], "scores": [-1, -2]}'),
        ("LIST.CSV", "image_path,caption\nb/5.jpg,a man\n"),
        ("list.TSV", "id\ttext\n5\ta man\n"),
        ("results.json", '{"5": ["a man"]}'),
    ],
)
def test_predictions_of_other_kinds_are_scored_as_a_list_is(files, tmp_path, name, text):
    """tests/captioning/data/test_caption_files.py has all kinds; of several captions the first."""
    predictions, *rest = files(references={"5": ["a man on a horse"]})
    expected = evaluate(predictions, *rest, "--metrics", "length", "repetition")
    (tmp_path / name).write_text(text)
    assert evaluate(tmp_path / name, *rest, "--metrics", "length", "repetition") == expected
    assert expected.code == 0 and "Cap. Len.  2.00" in expected.out


def test_characters_are_counted_in_a_language_without_spaces(files, tmp_path):
    """The scores are those of the same captions with a space after each character."""
    captions = {5: "一只狗在3米外跑。", 6: "两个人，在海边 Beach"}  # noqa: RUF001
    references = {"5": ["一只狗在草地上跑"], "6": ["两个人在海边走", "人们在沙滩上"]}
    spaced = {5: "一 只 狗 在 3 米 外 跑", 6: "两 个 人 在 海 边 beach"}
    references_spaced = {i: [" ".join(text) for text in group] for i, group in references.items()}
    found = []
    chosen = ["--metrics", "coco", "length", "diversity", "repetition", "detail"]
    for texts, groups, language in (
        (captions, references, "zh"),
        (spaced, references_spaced, "de"),
    ):
        rows = [{"image_id": i, "caption": caption} for i, caption in texts.items()]
        options = ["--language", language, "--output_dir", tmp_path / language, *chosen]
        done = evaluate(*files(rows, groups), *options)
        summary = json.loads((tmp_path / language / "metrics.json").read_text())
        found.append((summary["metrics"], done.out))
        assert f"language: {language}" in done.out and summary["settings"]["language"] == language
        names = "METEOR, Nouns, Adjectives, Numbers, Relations"
        line = f"{names} skipped: only for English, not for language: {language}"
        assert done.out.splitlines()[-1] == line
    assert found[0][0] == found[1][0]
    assert found[0][0]["cap_len"]["value"] == 7.5 and found[0][0]["CIDEr"]["value"] > 0
    assert "tokenizer: characters" in found[0][1]
    assert "language: found 'zh-CN'; give two letters" in evaluate(*files(), "--language=zh-CN").err


def test_several_captions_of_an_image_are_scored(files):
    """Ids as in Flickr8k's files; each caption has the references of its image."""
    texts = {"5#0": "a rider", "5#1": "a horse", "6": "a bus"}
    results = [{"image_id": i, "caption": text} for i, text in texts.items()]
    several = evaluate(*files(results), "--metrics", "coco")
    assert several.code == 0 and "warning: 1 of 3 images with references" in several.err
    alone = [{"image_id": i, "caption": text} for i, text in enumerate(texts.values())]
    references = [REFERENCES[i.partition("#")[0]] for i in texts]
    same = evaluate(*files(alone, dict(enumerate(references))), "--metrics", "coco")
    assert same[:2] == several[:2]


def test_a_folder_that_cannot_be_written_to_costs_no_work(files, monkeypatch):
    monkeypatch.setattr("captioning.evaluate.score", lambda *_: pytest.fail("scored"))
    arguments = files()
    code, out, err = evaluate(*arguments, "--output_dir", arguments[0])
    assert (code, out) == (2, "") and one_error_line(err, "error: cannot write")


def test_a_stop_by_the_keyboard_is_one_line(files, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("captioning.evaluate.score", stop)
    assert evaluate(*files()) == (130, "", "stopped: nothing was written\n")


def test_an_option_that_no_chosen_metric_uses_is_a_warning(files):
    arguments = files(references={"5": ["a man"]})
    options = ["--synonyms", "none.txt", "--itm_model", "none.pth", "--spice_timeout", "5"]
    code, _, err = evaluate(*arguments, "--metrics", "coco", *options)
    assert code == 0 and err.splitlines() == [
        "warning: --synonyms has no effect without --metrics chair",
        "warning: --itm_model has no effect without --metrics itm",
    ]


def test_metrics_are_chosen_by_name_and_an_unknown_one_is_refused(files):
    arguments = files()
    assert "SPICE skipped: no Java" in evaluate(*arguments, "--spice").out
    code, out, _ = evaluate(*arguments, "--metrics", "length")
    assert code == 0 and out.splitlines()[:1] == ["Cap. Len.  2.00"]
    code, _, err = evaluate(*arguments, "--metrics", "rouge")
    assert code == 2 and "coco" in err


@pytest.mark.slow
def test_an_option_names_a_file_of_a_store(files, s3):
    s3.files.pipe_file("bucket/scenes.json", b'{"made_from": {}, "scenes": {"5": ["sand"]}}')
    arguments = files([{"image_id": 5, "caption": "sand"}], {"5": ["sand"]})
    scored = [*arguments, "--metrics", "facts", "--facts_file"]
    assert evaluate(*scored, "s3://bucket/scenes.json").code == 0
    code, _, err = evaluate(*scored, "")
    assert code == 2
    assert err == (
        "error: metrics: facts needs facts_file: the file that describes each image's scene\n"
    )


@pytest.mark.parametrize("compared", [False, True])
def test_scores_are_written_before_they_are_printed(files, tmp_path, monkeypatch, compared):
    def closed(*_):
        raise BrokenPipeError

    for name in ("format_table", "format_comparison"):
        monkeypatch.setattr(f"captioning.evaluate.{name}", closed)
    results, *rest = files()
    given = ["--compare", results, results] if compared else [results]
    with pytest.raises(BrokenPipeError):
        evaluate(*given, *rest, "--metrics", "length", "--output_dir", tmp_path / "out")
    assert (tmp_path / "out" / ("comparison.json" if compared else "metrics.json")).is_file()
