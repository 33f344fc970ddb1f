"""Model cards, rendered from the record of a run alone: nothing in them is typed by hand but what only the publisher knows."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from babel import Locale
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from .card_tables import counts_table, differences, score_table, settings_table, signatures, training_table, weights
from .run_config import UserError
from .run_record import RunRecord, cleaned
from .training_data import LICENSES, TrainingData, training_data

TEMPLATE = Path(__file__).with_name("model_card.md")
METRICS = {  # of results.json: the Hub's name of the metric, and ours
    "paper_bleu": ("bleu", "the paper's BLEU"),
    "multi_bleu": ("bleu", "BLEU of the tokens as they stand"),
    "sacrebleu": ("sacrebleu", "sacreBLEU"),
    "sacrebleu_intl": ("sacrebleu", "sacreBLEU, international tokens"),
    "chrf2": ("chrf", "chrF2"),
}


@dataclass(frozen=True)
class Statement:
    """What the publisher says of the model: what no code can know."""

    repo_id: str
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    data_note: str | None = None  # what the training text is, where it is from, on what terms
    tag: str = "v1"

    def terms(self, data: TrainingData) -> dict[str, str | None]:
        """Of the model: what the publisher says, else what its training text suggests."""
        source = self if self.license else data
        return {name: getattr(source, name) for name in ("license", "license_name", "license_link")}


def make_card(
    record: RunRecord, said: Statement, sentence: str, examples: Sequence[tuple[str, str]], citation: str
) -> ModelCard:
    """The card of a model.

    Args:
        sentence: one written by us, or by the publisher, as people write it.
        examples: it and others, in the form that the model was trained on, with the model's translations.
        citation: BibTeX.

    Raises:
        UserError: the publisher has to say more, or what the card says is not what the Hub accepts.
    """
    data, settings = known_and_said(record, said), cleaned(record.settings)
    card_data = metadata(record, said, data)
    names = [Locale("en").languages[code] for code in card_data.language]
    card = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        repo_id=said.repo_id,
        tag=said.tag,
        names=names,
        data=data,
        said=said,
        settings=settings,
        lowercased=record.lowercased,
        report=record.data,
        results=record.results,
        weights=record.weights,
        which_weights=weights(record.weights),
        examples=[(_cell(source), _cell(translation)) for source, translation in examples],
        sentence=json.dumps(sentence, ensure_ascii=False),
        first=json.dumps(examples[0][0], ensure_ascii=False),
        terms=said.terms(data),
        scores=score_table(record),
        signatures=signatures(record),
        counts=counts_table(record.data),
        architecture=settings_table(record),
        training=training_table(record),
        differences=differences(record, data),
        curve=(record.path / "bleu_curve.png").is_file(),
        processes=record.environment.get("processes", 1),
        citation=citation,
    )
    check_card(card)
    return card


def known_and_said(record: RunRecord, said: Statement) -> TrainingData:
    """What is known of the training data.

    Raises:
        UserError: nothing is, and the publisher has not said it.
    """
    data = training_data(record.settings, record.data)
    base = record.settings["init_from"]
    if (data.license is None and said.license is None) or (base and said.license is None):
        what = f"on what terms {base}, which this was trained on from, is" if base else f"the licence of {data.title}"
        raise UserError(f"nobody but you knows {what}: state the model's own with --license ID, as cc-by-4.0")
    if data.own and not said.data_note:
        raise UserError(
            f"a card has to say what a model was trained on, and of {data.title} the run does not tell: "
            f'--data-note "what it is, where it is from, on what terms"'
        )
    if said.license == "other" and not (said.license_name and said.license_link):
        raise UserError("--license other needs its name and address: --license-name NAME --license-link URL")
    return data


def metadata(record: RunRecord, said: Statement, data: TrainingData) -> ModelCardData:
    """The YAML at the head of a card, as the Hub reads it."""
    base = record.settings["init_from"]
    return ModelCardData(
        language=[language_code(language) for language in record.languages],
        **said.terms(data),
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani", "transformer", "attention-is-all-you-need", "arxiv:1706.03762", "custom_code"],
        datasets=[data.dataset] if data.dataset else None,
        base_model=base if base and re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not Path(base).exists() else None,
        metrics=sorted({METRICS[name][0] for entry in record.scores for name in entry["scores"] if name in METRICS}),
        model_name=said.repo_id.split("/")[-1],
        eval_results=[
            result for entry in record.scores if record.is_of_model(entry) for result in _index(record, entry, data)
        ],
    )


def _index(record: RunRecord, entry: dict, data: TrainingData) -> list[EvalResult]:
    """The model-index entries of what was scored once: one for each metric, with its signature."""
    source, target = map(language_code, record.languages)
    text = {
        "task_type": "translation",
        "task_name": f"Translation {source}-{target}",
        "dataset_type": data.name,
        "dataset_name": entry["set"],
        "dataset_config": f"{source}-{target}, {entry['set']}",  # with the split, what tells data sets apart
        "dataset_split": entry["split"] or "test",
    }
    how = {"weights": entry["weights"], "sentences": entry["sentences"], **entry["decoding"]}
    results = [
        EvalResult(
            metric_type=METRICS[name][0], metric_name=METRICS[name][1], metric_config=name,
            metric_value=round(score["score"], 2), metric_args={"signature": score["signature"], **how}, **text,
        )
        for name, score in entry["scores"].items() if name in METRICS
    ]  # fmt: skip
    if entry["ppl"] is not None:
        args = {"weights": entry["weights"], "per": "token of the vocabulary, end of sentence counted, unsmoothed"}
        ppl = EvalResult(
            metric_type="perplexity",
            metric_name="perplexity",
            metric_value=round(entry["ppl"], 3),
            metric_args=args,
            **text,
        )
        results.append(ppl)
    return results


def language_code(language: str) -> str:
    """The ISO 639 code of a language as settings name it: "pt" of "pt_BR".

    Raises:
        UserError: there is no such language.
    """
    code = re.split(r"[-_]", language)[0].lower()
    if code not in Locale("en").languages:
        raise UserError(
            f"{language!r} is no ISO 639 code of a language, which the Hub wants: correct source_lang and target_lang in "
            f"the run's config.yaml"
        )
    return code


def check_card(card: ModelCard) -> None:
    """What the Hub checks of a card's metadata, as far as that can be done without it; `card.validate()` asks the Hub.

    Raises:
        UserError: it would not be accepted.
    """
    head = yaml.safe_load(re.match(r"---\n(.*?)\n---\n", card.content, re.DOTALL)[1])
    license = head.get("license")
    if license not in LICENSES:
        raise UserError(f"{license!r} is no licence that the Hub knows: one of {', '.join(sorted(LICENSES))}")
    if license == "other" and not re.match(r"https?://\S+$|\w[\w.-]*$", head.get("license_link", "")):
        raise UserError("a licence 'other' needs a link: --license-link URL")
    if license == "other" and not re.fullmatch(r"[a-z0-9.-]+", head.get("license_name", "")):
        raise UserError(f"license_name {head.get('license_name')!r} must be of small letters, digits, - and . alone")
    if head.get("pipeline_tag") != "translation" or head.get("library_name") != "transformers":
        raise UserError("the card must say pipeline_tag: translation and library_name: transformers")
    for code in head["language"]:
        language_code(code)
    name, results = model_index_to_eval_results(head["model-index"])
    if not results or [result.task_type for result in results] != ["translation"] * len(results):
        raise UserError("the card has no scores: a model without one cannot be judged")
    again = ModelCardData(model_name=name, eval_results=results).to_dict()["model-index"]
    if again != head["model-index"] or json.loads(json.dumps(again)) != again:
        raise UserError("the model-index of the card is not one that the Hub reads as it was written")


def bibtex(citation_file: Path) -> str:
    """The paper and this software, of a CITATION.cff."""
    cff = yaml.safe_load(citation_file.read_text(encoding="utf-8"))
    paper = cff["references"][0]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    software = " and ".join("{" + author["name"] + "}" for author in cff["authors"])
    return (
        f"@inproceedings{{vaswani2017attention,\n  title     = {{{paper['title']}}},\n  author    = {{{authors}}},\n"
        f"  booktitle = {{{paper['collection-title']}}},\n  year      = {{{paper['year']}}},\n  url       = {{{paper['url']}}}\n}}\n\n"
        f"@software{{vaswani_software,\n  title   = {{{cff['title']}}},\n  author  = {{{software}}},\n"
        f"  version = {{{cff['version']}}},\n  license = {{{cff['license']}}}\n}}"
    )


def _cell(text: str) -> str:
    """Text in a cell of a table, as it is: Markdown would read some of it."""
    return re.sub(r"([\\`*_<>\[\]|~&])", r"\\\1", " ".join(text.split())) or "(nothing)"
