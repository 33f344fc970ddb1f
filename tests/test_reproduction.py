"""The paper's tables as runs: what they take, where they are, what is said of their results."""

import json
from pathlib import Path

import pytest
from load_script import ROOT

from vaswani import paper, reproduction
from vaswani.rows import SCALED, Row, gpu_hours, plan, planned, rows_of
from vaswani.run_config import UserError, flat, read_config, write_yaml

MAY_DIFFER = {"output_dir", "keep_checkpoints", "d_k", "d_v", "save_steps"}


def test_the_rows_are_the_papers():
    assert [row.name for row in rows_of("table3")] == [row.name for row in paper.TABLE3]
    assert {row.name: row.bleu for row in rows_of("table2")} == {
        "en_de_base": 27.3, "en_de_big": 28.4, "en_fr_base": 38.1, "en_fr_big": 41.8, "en_fr_big_untied": 41.8
    }  # fmt: skip
    assert [row.average for row in rows_of("table2")] == [5, 20, 5, 20, 20]
    assert all(row.average is None and row.split == "valid" for row in rows_of("table3"))
    with pytest.raises(UserError, match=r"table3 has no row 'a_heads_3': choose from base, a_heads_1"):
        rows_of("table3", ["a_heads_3"])


@pytest.mark.parametrize("name", ["base", "big"])
def test_what_table_3_shares_with_table_2_is_one_training(name):
    (row,) = rows_of("table3", [name])
    shared, own = (flat(read_config([str(path)])) for path in (row.config, ROOT / "configs/table3" / f"{name}.yaml"))
    assert {key for key in shared if shared[key] != own[key]} <= MAY_DIFFER
    assert row.run(Path("runs"), 1) == rows_of("table2", [f"en_de_{name}"])[0].run(Path("runs"), 1)


def test_multi30k_has_the_analogues_of_every_row_but_those_of_width_64():
    rows = {row.name: row.settings().model for row in rows_of("multi30k")}
    assert len(rows) == 20  # and two more seeds of the base row: 22 runs
    for name, model in rows.items():
        widths = model.num_heads * (model.d_k or model.d_model // model.num_heads)
        assert name.startswith("b_") or widths == model.d_model
    likes = {like for like, _ in SCALED.values()}
    assert likes == {row.name for row in paper.TABLE3}


def test_the_plan_is_that_of_the_arithmetic():
    plans = {row.name: planned(row) for row in [*rows_of("table2"), *rows_of("table3")]}
    expected = {"en_de_base": (381, 9.53e17, 64), "en_de_big": (1291, 9.68e18, 654), "en_fr_base": (366, 9.15e17, 62),
                "en_fr_big": (1260, 9.45e18, 636)}  # fmt: skip
    for name, (pair, flops, minutes) in expected.items():
        assert plans[name]["flops_per_pair"] / 1e6 == pytest.approx(pair, abs=0.5)
        assert plans[name]["flops"] == pytest.approx(flops, rel=0.002)
        assert 60 * gpu_hours(plans[name]["flops"], "H100", 0.25) == pytest.approx(minutes, rel=0.01)
    epochs = [plans[name]["epochs"] for name in expected]
    assert epochs == pytest.approx([19, 56, 1.9, 5.7], rel=0.03)
    like_base = [x["flops"] for name, x in plans.items() if name in {row.name for row in paper.TABLE3[:-1]}]
    assert len(like_base) == 19 and sum(like_base) == pytest.approx(1.86e19, rel=0.005)


def test_the_plan_of_a_table_counts_every_run_and_every_training_once():
    rows = [row for table in ("table2", "table3") for row in rows_of(table)]
    once = {row.name: 1 for row in rows}
    last = plan(rows, once, ["H100"], [0.25, 0.4]).splitlines()[-1]
    assert "3.87e+19 | 43.47 | 27.17 |" in last
    papers = [row for row in rows if row.name != "en_fr_big_untied"]
    assert plan(papers, once, ["H100"], [0.25, 0.4]).splitlines()[-1] == last
    base = plan(rows_of("table3", ["base", "big"]), {"base": 3, "big": 1}, ["H100"], [0.25]).splitlines()
    assert "| base | 3 | 100,000 | 18.5 | 381 | 7.50e+09 | 2.86e+18 | 3.21 |" in base
    assert "1.25e+19" in base[-1]  # three times 9.53e17, and 9.68e18
    both = plan(
        [*rows_of("table2", ["en_de_base"]), *rows_of("table3", ["base"])],
        {"en_de_base": 1, "base": 3},
        ["H100"],
        [0.25],
    )
    assert "2.86e+18" in both.splitlines()[-1]  # one folder, three seeds
    alone = plan(rows_of("table2", ["en_fr_big_untied"]), {"en_fr_big_untied": 1}, ["H100"], [0.25]).splitlines()
    assert "1.40e+19" in alone[-1]


def line(row: str, bleu: float, seed: int = 1, table: str = "multi30k") -> dict:
    published = {r.name: r for r in rows_of(table)}[row].bleu
    return {"table": table, "row": row, "seed": seed, "bleu": bleu, "paper_bleu": published}


def test_verdicts():
    for bleu, expected in ((26.3, "inside"), (26.4, "above"), (25.2, "below")):
        lines = [line("base", bleu, table="table3")]
        assert reproduction.verdict(lines[0], lines) == expected
    base = [line("base", 30.0 + x, seed) for seed, x in enumerate((-0.2, 0.0, 0.2), start=1)]  # two deviations: 0.4
    for row, bleu, expected in (
        ("a_heads_1", 29.0, "as in the paper"), ("a_heads_1", 31.0, "not as in the paper"),
        ("a_heads_1", 30.3, "within the spread of seeds"), ("a_heads_8", 30.3, "as in the paper"),
        ("c_layers_4", 25.0, "not as in the paper"), ("c_layers_4", 29.7, "as in the paper"),
        ("big", 29.0, "not as in the paper"), ("big", 30.5, "as in the paper"),
    ):  # fmt: skip
        new = line(row, bleu)
        assert reproduction.verdict(new, [*base, new]) == expected
    assert reproduction.verdict(base[0], base) == "-"
    assert reproduction.verdict(line("big", 31.0), [base[0], line("big", 31.0)]) == "-"  # no spread is known


def averaged(run: Path, *steps: int) -> list[str]:
    names = [f"step_{step}" for step in steps]
    (run / "averaged").mkdir(parents=True, exist_ok=True)
    (run / "averaged" / "averaged_from.json").write_text(json.dumps({"checkpoints": names}))
    return names


def test_what_counts_as_trained(tmp_path):
    run, config = tmp_path / "run", rows_of("multi30k", ["base"])[0].settings("--max_steps", "2")
    run.mkdir()
    (run / "results.json").write_text(json.dumps({"step": 2, "scores": []}))
    assert not reproduction.is_trained(run, config)  # its model is missing
    (run / "config.json").touch()
    write_yaml(run / "config.yaml", config)
    assert reproduction.is_trained(run, config)
    longer, other = (
        rows_of("multi30k", ["base"])[0].settings(*x)
        for x in (("--max_steps", "3"), ("--max_steps", "2", "--d_ff", "8"))
    )
    assert not reproduction.is_trained(run, longer)
    with pytest.raises(UserError, match=r"was trained with other settings \(d_ff 512 -> 8\): choose another"):
        reproduction.is_trained(run, other)


def test_what_counts_as_averaged(tmp_path):
    assert not reproduction.is_averaged(tmp_path, 2)
    averaged(tmp_path, 1, 2)
    assert reproduction.is_averaged(tmp_path, 2) and not reproduction.is_averaged(tmp_path, 5)
    for step, by_stop in ((1, False), (2, True), (3, False)):
        (tmp_path / f"checkpoints/step_{step}").mkdir(parents=True)
        (tmp_path / f"checkpoints/step_{step}/state.json").write_text(json.dumps({"by_stop": by_stop}))
    assert not reproduction.is_averaged(tmp_path, 2)
    averaged(tmp_path, 1, 3)
    assert reproduction.is_averaged(tmp_path, 2)


def test_what_counts_as_scored(tmp_path):
    row = Row("table2", "x", Path("x.yaml"), "test", average=2)
    last = {"split": "test", "weights": "last", "decoding": {"num_beams": 4}, "scores": {"paper_bleu": {}}}
    (tmp_path / "results.json").write_text(json.dumps({"step": 3, "scores": [last]}))
    assert reproduction.scored(row, tmp_path) is None  # trained and not averaged: the last weights do not stand in
    mean = last | {"weights": "average of steps 1, 3", "checkpoints": averaged(tmp_path, 1, 3)}
    for scores, found in (([], None), ([last], None), ([last, mean], mean),
                          ([mean | {"split": "valid"}], None), ([mean | {"decoding": {"num_beams": 1}}], None),
                          ([mean | {"checkpoints": ["step_1", "step_2"]}], None), ([mean | {"scores": {}}], None)):  # fmt: skip
        (tmp_path / "results.json").write_text(json.dumps({"step": 3, "scores": scores}))
        assert reproduction.scored(row, tmp_path) == found
        alone = reproduction.scored(Row("table3", "x", Path("x.yaml"), "test"), tmp_path)
        assert alone == (last if last in scores else None)


def test_the_figure_needs_several_seeds_of_the_base_row(tmp_path, monkeypatch):
    lines = [line(row.name, 25.0) | {"ppl": 8.0, "paper_ppl": row.ppl} for row in rows_of("multi30k")]
    monkeypatch.setattr(reproduction, "collect", lambda *_: lines)
    monkeypatch.setattr(reproduction, "as_table", lambda _: "")
    reproduction.write(tmp_path)
    assert not (tmp_path / "multi30k.png").exists()
    lines.append(lines[0] | {"bleu": 25.5, "ppl": 7.9, "seed": 2})
    assert reproduction.write(tmp_path) == tmp_path / "results.json"
    assert (tmp_path / "multi30k.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_gives_mean_and_deviation_over_seeds():
    more = {"ppl": 8.0, "paper_ppl": 4.92, "sacrebleu": 24.0, "parameters": 1_250_000, "paper_parameters": 65,
            "flops": 1e15, "paper_flops": None, "verdict": "-"}  # fmt: skip
    lines = [line("base", bleu, seed) | more for seed, bleu in enumerate((24.0, 25.0, 26.0), start=1)]
    lines.append(line("big", 27.5) | more | {"ppl": 7.25})
    shown = reproduction.as_table(lines).splitlines()
    assert len(shown) == 4 and shown[0].count("|") == shown[2].count("|") == shown[3].count("|")
    assert "| base | 3 | 8.00 ± 0.00 | 4.92 | 25.0 ± 1.0 | 25.8 | 24.0 ± 0.0 | 1.25M | 65M | 1.00e+15 |" in shown[2]
    assert "| big | 1 | 7.25 | 4.92 | 27.5 | 26.4 |" in shown[3]
