"""What METEOR's Java program answers about a few captions, and a script that answers the same."""

CAPTIONS = [
    *("a man rides a horse", "", "two cats sit on a red sofa", "a | | | dog", "zebra"),
    # Two captions that equal a reference, and one that does in two chunks.
    *("zebra", "a dog on a sofa", "a dog on a sofa"),
]
REFERENCES = [
    ["a man on a horse", "man riding"],
    ["something is here"],
    ["cats sitting on the couch", "", "a pair of cats"],
    ["a dog"],
    ["a train at a station"],
    *(["zebra"], ["a dog on a sofa"], ["a sofa on a dog"]),
]
# Recorded from METEOR 1.5 of pycocoevalcap 1.2: the counts of each caption, its score, and the
# score of all.
STATISTICS = [
    [5, 5, 2, 3, *[2] * 4, *[0] * 12, 2, 4, 4],
    [0, 3, 0, 1, *[0] * 19],
    [7, 5, 3, 2, *[1] * 6, 0, 0, 1, 1, *[0] * 6, 2, 4, 4],
    [5, 2, *[1] * 6, *[0] * 12, 2, 2, 2],
    [1, 5, 0, 3, *[0] * 19],
    [1, 1, 0, 0, 1, 1, *[0] * 14, 1, 1, 1],
    [5, 5, 3, 3, 2, 2, 3, 3, *[0] * 12, 1, 5, 5],
    [5, 5, 3, 3, 2, 2, 3, 3, *[0] * 12, 3, 5, 5],
]
EACH = [
    *(0.4108986339976993, 0.0, 0.3376630369468163, 0.2990654205607477, 0.0),
    *(1.0, 1.0, 0.45827172913153946),
]
TOTAL = 0.3317019877692268

LINES = [" ".join(f"{value:.1f}" for value in values) for values in STATISTICS]
_ASKED = [
    f"'SCORE ||| {' ||| '.join([*group, caption])}') echo '{line}';;"
    for caption, group, line in zip(CAPTIONS, REFERENCES, LINES)
]
# A script for `fake_java`. It answers no other question.
SCRIPT = f"""
while IFS= read -r line; do case "$line" in
{chr(10).join(_ASKED)}
*) echo "unexpected: $line"; exit 4;;
esac; done
"""
