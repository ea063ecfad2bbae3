"""What the README says of settings is what there is."""

import re

from captioning.config import Config, load_config


def test_the_settings_table_has_every_key_and_no_other(repository):
    text = (repository / "README.md").read_text()
    table = text.split("## Settings")[1].split("##")[0]
    rows = re.findall(r"^\| (`.+?) \|", table, flags=re.MULTILINE)
    named = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(Config.model_fields)


def test_defaults_in_the_settings_table(repository, tmp_path):
    path = tmp_path / "least.yaml"
    path.write_text("image_root: a\nann_root: b\n")
    config = load_config(path)
    table = (repository / "README.md").read_text().split("## Settings")[1].split("##")[0]
    checked = 0
    for keys, default in re.findall(r"^\| (`.+?) \| (.*?) \|", table, flags=re.MULTILINE):
        names = re.findall(r"`(\w+)`", keys)
        values = [default] if len(names) == 1 else default.split(", ")
        for name, shown in zip(names, values):
            if re.fullmatch(r"-?[\d.e-]+|true|false", shown):
                expected = {"true": True, "false": False}.get(shown)
                expected = float(shown) if expected is None else expected
                assert getattr(config, name) == expected, name
                checked += 1
    assert checked > 30
