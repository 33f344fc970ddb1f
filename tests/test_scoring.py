import pytest

from vaswani.scoring import sacrebleu


def test_known_scores_and_signature():
    lines = ["Das ist ein kleines Haus .", "Es regnet heute in der Stadt ."]
    score = sacrebleu(lines, lines)
    assert score.score == pytest.approx(100)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    # 4-gram precisions 5/6, 4/5, 3/4, 2/3 (one word of six wrong at the end), no brevity penalty
    one = sacrebleu(["a b c d e x"], ["a b c d e f"])
    assert one.score == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    assert "BP = 1.000" in str(one) and one.signature in str(one)


def test_errors():
    with pytest.raises(ValueError, match="1 translations but 2 references"):
        sacrebleu(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="nothing to score"):
        sacrebleu([], [])
