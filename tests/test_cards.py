"""Model cards say what the record says, ask for what it cannot know, and are what the Hub reads."""

import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from load_script import ROOT, load_script

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.cards import Statement, bibtex, check_card, known_and_said, language_code, make_card
from vaswani.own_sentences import as_trained, sentences
from vaswani.planned_pages import header, index, planned
from vaswani.run_config import UserError, read_config, write_yaml
from vaswani.run_record import outdone, read_record
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.training_data import LICENSES, training_data

SAID = Statement("org/name", license="cc-by-4.0", data_note="Letters of our town's archive, CC BY 4.0.")
CITATION = bibtex(ROOT / "CITATION.cff")
SPLIT = {
    "read": 20,
    "mended": {"byte order marks": 1},
    "removed": {"empty": 3},
    "kept": 17,
    "source tokens": 90,
    "target tokens": 100,
}
BLEU = {
    "paper_bleu": {
        "score": 27.312,
        "signature": "nrefs:1|case:mixed|tok:moses.de|script:multi-bleu",
        "details": "60/30",
    },
    "sacrebleu": {"score": 26.4, "signature": "nrefs:1|case:mixed|tok:13a|version:2.6.0", "details": ""},
    "length_ratio": {"score": 0.987, "signature": "x", "details": "987 / 1000"},
}


def entry(
    name: str = "newstest2014", weights: dict | None = None, beams: int = 4, ppl: float | None = 4.925, **scores
) -> dict:
    decoding = {"num_beams": beams, "length_penalty": 0.6}
    return {
        "set": name,
        "split": "test",
        "sentences": 3003,
        "decoding": decoding,
        "ppl": ppl,
        "scores": BLEU | scores,
    } | (weights or {"weights": "last"})


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    tokenizer = train_tokenizer(["A House. The House."], 300)
    config = VaswaniConfig(vocab_size=len(tokenizer), d_model=16, d_ff=16, num_layers=1, num_heads=2)
    for part in (VaswaniForSeq2SeqLM(config), tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path, weights):
    """A function: `run(recipe="wmt14_en_de")` is the folder of a finished run with these settings."""

    def make(
        scores: list[dict] | None = None, averaged: list[str] | None = None, environment: dict | None = None, **settings
    ) -> Path:
        path = tmp_path / "run"
        path.mkdir()
        yaml_file = tmp_path / "given.yaml"
        known = {"max_steps": 100_000, "output_dir": "runs/mine", "seed": 7}
        yaml_file.write_text(yaml.safe_dump(known | settings))
        write_yaml(path / "config.yaml", read_config([str(yaml_file)]))
        lines = [
            {"step": 99_000, "loss": 1.6, "nll": 1.5, "target_tokens": 990, "seconds": 43_000.0, "epoch": 9},
            {"step": 100_000, "loss": 1.51, "nll": 1.44, "target_tokens": 1000, "seconds": 43_200.0, "epoch": 10},
            {"step": 100_000, "valid_nll": 1.5, "valid_ppl": 4.48, "valid_bleu": 25.8},
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        known = {
            "device": "NVIDIA P100",
            "processes": 8,
            "threads_per_process": 2,
            "torch": "2.13.0",
            "mixed_precision": "no",
            "commit": "abc1234",
            "code": "0123456789ab",
        }
        known |= {"host": "secret-host", "process": 4711} | (environment or {})
        (path / "environment.json").write_text(json.dumps(known))
        vocabulary = {"taken from": None, "entries": 300, "pairs learned from": 17}
        data = {"train": SPLIT, "valid": SPLIT, "test": SPLIT | {"read": 1000}, "vocabulary": vocabulary}
        (path / "data.json").write_text(json.dumps(data))
        results = {"step": 100_000, "best_step": 90_000, "scores": scores if scores is not None else [entry()]}
        (path / "results.json").write_text(json.dumps(results))
        for file in weights.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        if averaged:
            (path / "averaged").mkdir()
            for file in weights.iterdir():
                (path / "averaged" / file.name).write_bytes(file.read_bytes())
            (path / "averaged" / "averaged_from.json").write_text(json.dumps({"run": "run", "checkpoints": averaged}))
        return path

    return make


def card(path: Path, said: Statement = SAID, examples=(("A house.", "Ein Haus."),), **options) -> ModelCard:
    return make_card(read_record(path, **options), said, examples[0][0], examples, CITATION)


def head(made: ModelCard) -> dict:
    return yaml.safe_load(made.content.split("---\n")[1])


TWO = ["step_98500", "step_100000"]
AVERAGE = {"weights": "average of steps 98,500, 100,000", "checkpoints": TWO}


def test_the_papers_base_model(run):
    last, average = entry(), entry(weights=AVERAGE, sacrebleu=BLEU["sacrebleu"] | {"score": 26.9})
    made = card(run([last, average], averaged=TWO, recipe="wmt14_en_de", warmup_steps=4000), Statement("org/base"))
    text = made.content
    assert "its settings are those of the paper's base model" in text.lower()
    assert "The weights are the average of steps 98,500, 100,000." in text
    for fact in (
        "Europarl v7",
        "100,000",
        "12.00",
        "8 processes of 2 threads on NVIDIA P100",
        "commit `abc1234`",
        "float32",
        "| 10.0 |",
    ):
        assert fact in text, fact
    assert "--multi_gpu --num_processes 8 scripts/train.py config.yaml" in text
    assert "average_checkpoints.py runs/mine --steps 98500 100000" in text
    assert "**26.90**" in text and "26.40" in text and "**26.40**" not in text  # bold: what is published
    assert "secret-host" not in text and "4711" not in text
    assert "vaswani2017attention" in text and "{The Vaswani project}" in text
    metadata = head(made)
    assert metadata["license"] == "other" and metadata["license_link"].startswith("https://www.statmt.org/wmt14")
    assert (metadata["pipeline_tag"], metadata["library_name"], metadata["language"]) == (
        "translation",
        "transformers",
        ["en", "de"],
    )
    name, results = model_index_to_eval_results(metadata["model-index"])
    found = {(result.metric_type, result.metric_config): result for result in results}
    assert name == "base" and found.keys() == {("bleu", "paper_bleu"), ("sacrebleu", "sacrebleu"), ("perplexity", None)}
    bleu = found["sacrebleu", "sacrebleu"]
    assert bleu.metric_value == 26.9 and bleu.metric_args["signature"] == BLEU["sacrebleu"]["signature"]
    assert bleu.metric_args["weights"] == AVERAGE["weights"] and bleu.metric_args["num_beams"] == 4
    assert (bleu.dataset_type, bleu.dataset_name, bleu.dataset_split) == ("wmt14", "newstest2014", "test")


def test_the_other_weights_of_the_same_run(run):
    path = run([entry(), entry(weights=AVERAGE)], averaged=TWO, recipe="wmt14_en_de")
    assert "the last ones of the run" in card(path, Statement("org/base"), weights="last").content
    assert read_record(path).weights == AVERAGE


def test_every_table_is_one(run):
    scores = [entry(), entry("newstest2013", beams=1, ppl=None)]
    made = card(
        run(
            scores,
            d_model=128,
            num_heads=4,
            dropout=0.3,
            data_dir="d",
            train_files=["t"],
            valid_files=["v"],
            test_files=["x"],
        ),
        examples=[("a | b", "*c* `d`")],
    )
    tables = re.findall(r"(?:^\|.*\n)+", made.content, re.MULTILINE)
    assert len(tables) == 6
    for rows in tables:
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in rows.splitlines()}
        assert len(cells) == 1, rows
        assert re.fullmatch(r"\|(?: ?:?-+:? ?\|)+", rows.splitlines()[1])
    assert r"a \| b" in made.content and r"\*c\* \`d\`" in made.content
    assert "newstest2013, 3,003 sentences | last | greedy |" in made.content
    assert "| width, d_model | 512 | 128 |" in made.content and "| dropout | 0.1 | 0.3 |" in made.content
    assert "17 pairs of text that the publisher provided" in made.content
    assert not re.search(r"\n\n\n", made.content) and "None" not in made.content and "{%" not in made.content


def test_multi30k_of_tokens(run, weights):
    names = {
        f"{split}_files": [f"{name}.lc.norm.tok"]
        for split, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr"))
    }
    path = run(
        [entry("test_2016_flickr.lc.norm.tok")],
        environment={"commit": None},
        tokenized=True,
        data_dir="/data/of/mine",
        **names,
    )
    data = json.loads((path / "data.json").read_text())
    data["train"] = SPLIT | {"read": 29_000, "kept": 29_000}
    (path / "data.json").write_text(json.dumps(data))
    train_tokenizer(["a house . the house ."], 300).save_pretrained(path)
    settings = read_record(path).settings
    sentence = sentences(settings, "en")[0]
    assert read_record(path).lowercased
    made = card(path, Statement("org/captions"), [(as_trained(sentence, "en", True, True), "ein bäcker .")])
    metadata, text = head(made), made.content
    assert metadata["license"] == "other" and "non-commercial" in metadata["license_name"]
    assert metadata["license_link"].startswith("https://") and metadata["datasets"] == ["bentrevett/multi30k"]
    for fact in (
        "lowercased Moses tokens",
        "van Miltenburg",
        "Flickr30k",
        "29,000 pairs of captions",
        "of no repository",
        "MosesTokenizer",
    ):
        assert fact in text, fact
    assert sentence.lower().replace(".", " .") in text and "--data_dir FOLDER" in text and "/data/of/mine" not in text


def test_the_embedded_corpus(run):
    made = card(run([entry("cldr test")], dataset="cldr"), Statement("org/quick"))
    assert head(made)["license"] == "apache-2.0" and "Unicode License v3" in made.content
    assert "It knows the sentence patterns of its corpus and no others" in made.content


def test_what_only_the_publisher_knows(run):
    path = run(data_dir="d", train_files=["t"], valid_files=["v"], test_files=["x"])
    record = read_record(path)
    with pytest.raises(
        UserError, match=r"nobody but you knows the licence of text that the publisher provided: .*--license"
    ):
        known_and_said(record, Statement("org/name"))
    with pytest.raises(UserError, match="--data-note"):
        known_and_said(record, Statement("org/name", license="mit"))
    with pytest.raises(UserError, match="--license-name NAME --license-link URL"):
        known_and_said(record, Statement("org/name", license="other", data_note="ours"))
    made = card(path)
    assert head(made)["license"] == "cc-by-4.0" and SAID.data_note in made.content and "`cc-by-4.0`" in made.content


def test_a_dataset_of_the_hub(run):
    path = run(dataset="someone/pairs", dataset_config="de-en", source_lang="de", target_lang="en")
    with pytest.raises(UserError, match="licence of the dataset `someone/pairs`"):
        known_and_said(read_record(path), Statement("org/name"))
    made = card(path)
    assert (
        head(made)["datasets"] == ["someone/pairs"] and "https://huggingface.co/datasets/someone/pairs" in made.content
    )
    assert "# German to English" in made.content and head(made)["language"] == ["de", "en"]


def test_a_fine_tuned_model_names_its_start(run):
    path = run(recipe="wmt14_en_de", init_from="org/base")
    with pytest.raises(UserError, match="on what terms org/base"):
        known_and_said(read_record(path), Statement("org/name"))
    made = card(path)
    assert (
        head(made)["base_model"] == "org/base"
        and "the vocabulary of another model (`init_from` in `config.yaml`: `org/base`)" in made.content
        and "fine-tuned from another model with" in made.content
    )


def test_changes_that_were_not_committed_are_said(run):
    path = run(recipe="wmt14_en_de", environment={"commit": "abc1234-dirty"})
    assert "commit `abc1234` with changes that were not committed" in card(path).content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), r"is no run folder, it has no config\.yaml"),
        (lambda run: (run / "results.json").unlink(), r"is not finished, it has no results\.json"),
        (lambda run: (run / "metrics.jsonl").unlink(), r"has no training log"),
        (lambda run: (run / "environment.json").unlink(), r"there is no .*environment\.json"),
        (lambda run: (run / "data.json").write_text("{"), r"data\.json is damaged"),
        (lambda run: (run / "model.safetensors").unlink(), r"holds no whole model, it has no model\.safetensors"),
        (lambda run: (run / "results.json").write_text('{"step": 100000, "test_bleu": 9}'), r"has no score of the weights in .*evaluate\.py .* --record"),
        (lambda run: (run / "results.json").write_text('{"step": 90000, "scores": []}'), r"not finished, it is at step 100,000"),
        (lambda run: (run / "metrics.jsonl").write_text('{"step": 50000, "target_tokens": 1}\n'), r"at step 50,000 of 100,000"),
    ],
)  # fmt: skip
def test_no_card_without_a_whole_record(run, change, message):
    path = run(recipe="wmt14_en_de")
    change(path)
    with pytest.raises(UserError, match=message):
        read_record(path)


def test_averaged_weights_need_their_own_score(run):
    path = run([entry()], averaged=TWO, recipe="wmt14_en_de")
    with pytest.raises(UserError, match=r"has no score of the weights in .*averaged"):
        read_record(path)
    assert read_record(path, "last").weights == {"weights": "last"}
    (path / "averaged" / "averaged_from.json").unlink()
    with pytest.raises(UserError, match=r"no averaged weights: make them with .*average_checkpoints"):
        read_record(path, "averaged")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("license: cc-by-4.0", "license: cc-by-4", "no licence that the Hub knows"),
        (
            "license: cc-by-4.0",
            "license: other\nlicense_name: Mine!\nlicense_link: https://x.y",
            "must be of small letters",
        ),
        ("license: cc-by-4.0", "license: other\nlicense_name: mine", "needs a link"),
        ("pipeline_tag: translation", "pipeline_tag: text2text", "must say pipeline_tag"),
        ("- en\n", "- english\n", "'english' is no ISO 639 code"),
        ("type: translation", "type: translating", "has no scores"),
    ],
)
def test_metadata_that_the_hub_would_refuse(run, before, after, message):
    made = card(run(recipe="wmt14_en_de"))
    check_card(made)
    changed = ModelCard(made.content.replace(before, after))
    assert changed.content != made.content
    with pytest.raises(UserError, match=message):
        check_card(changed)


def test_languages():
    assert [language_code(x) for x in ("en", "pt_BR", "zh-Hans", "gsw")] == ["en", "pt", "zh", "gsw"]
    with pytest.raises(UserError, match="'src' is no ISO 639 code"):
        language_code("src")


def test_every_recipe_has_terms():
    from vaswani.wmt import RECIPES

    for name, recipe in RECIPES.items():
        for source in ("archives", "hub")[: 1 + bool(recipe.hub)]:
            settings = {"recipe": name, "recipe_source": source}
            data = training_data(settings, {})
            assert (
                data.license in LICENSES
                and data.license_link
                and all(terms for _, terms in data.corpora)
                and data.corpora
            )


def test_sentences_of_ours(run):
    settings = {"dataset": None, "data_dir": "d", "tokenized": False}
    for lang in ("en", "de", "fr"):
        assert len(sentences(settings, lang)) == len(set(sentences(settings, lang))) == 10
    assert sentences(settings, "xx", ["mine"]) == ["mine"]
    with pytest.raises(UserError, match="no sentences in 'xx'"):
        sentences(settings, "xx")
    assert as_trained("L'eau, d'Or.", "fr", True, False) == "L&apos; eau , d&apos; Or ."
    assert as_trained("L'eau, d'Or.", "fr", False, True) == "l'eau, d'or."
    assert as_trained("L'eau, d'Or.", "fr", True, True) == "l&apos; eau , d&apos; or ."


# ------------------------------------------------------------------------------------------------ not trained yet
def test_the_pages_are_up_to_date():
    folder, pages = ROOT / "model_cards", planned(ROOT)
    assert len(pages) == 5
    cards = [path.parent for path in folder.glob("*/README.md")]
    for name, text in (pages | {"README.md": index(cards, pages)}).items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"{name}: run python scripts/model_cards.py"
    assert {path.name for path in folder.glob("*.md")} == pages.keys() | {"README.md"}


def test_a_page_says_what_its_config_says():
    for name, text in planned(ROOT).items():
        config = ROOT / "configs" / name.replace(".md", ".yaml")
        title, said, _ = header(config)
        assert title.rstrip(".") in text and "**Not trained yet.**" in text
        assert f"scripts/train.py configs/{config.name}" in text and said["Expected"].split("\n")[0] in text
        settings = yaml.safe_load(config.read_text())
        assert f"| {settings['d_ff']:,} |" in text and f"| {settings['max_steps']:,} |" in text


def test_the_index_lists_a_trained_model(run, tmp_path, capsys):
    hub = tmp_path / "hub"
    hub.mkdir()
    card(run(recipe="wmt14_en_de")).save(hub / "README.md")
    for name in ("results.json", "model.safetensors", "curves.png", "tokenizer.json"):
        (hub / name).write_text("{}")
    main = load_script("model_cards").main
    words = ["--output", str(tmp_path / "cards"), "--add", str(hub)]
    assert main(words) == 2 and "no folder that publish.py assembled" in capsys.readouterr().err
    (hub / ".assembled.json").write_text("{}")
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "cards" / "name").iterdir()} == {
        "README.md",
        "results.json",
        "curves.png",
    }
    listed = (tmp_path / "cards" / "README.md").read_text()
    assert "- [name](name/README.md): English to German" in listed and "wmt14_en_fr_big.md" in listed


def test_weights_that_others_of_the_run_outdo_are_named(run):
    mean = {"weights": "average of steps 1, 2", "checkpoints": ["step_1", "step_2"]}
    better = {"sacrebleu": BLEU["sacrebleu"] | {"score": 27.0}}
    path = run([entry(), entry(weights=mean, **better), entry("valid", weights=mean)], averaged=["step_1", "step_2"])
    assert outdone(read_record(path)) is None
    assert "these weights have 26.40 sacreBLEU on newstest2014, and average of steps 1, 2 has 27.00" in outdone(
        read_record(path, "last")
    )
    other_search = [entry(), entry(weights=mean, beams=1, **better)]
    (path / "results.json").write_text(json.dumps({"step": 100_000, "best_step": 1, "scores": other_search}))
    assert outdone(read_record(path, "last")) is None
