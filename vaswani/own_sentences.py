"""Sentences written for this project, which model cards translate: no sentence of anybody's corpus appears in a card."""

from collections.abc import Sequence
from pathlib import Path

from .moses import tokenize
from .pipeline_vaswani import VaswaniTranslationPipeline
from .plots import attention_heads
from .run_config import UserError
from .translation import translate

SENTENCES = {
    "en": (
        "A baker in a striped apron carries two trays of bread.",
        "Three children are building a tower of wooden blocks in the garden.",
        "An old woman repairs her bicycle next to a blue door.",
        "A small dog is asleep under the kitchen table.",
        "Two workers in orange vests are painting a white line on the street.",
        "A girl in a yellow raincoat jumps over a puddle.",
        "Several people are waiting for the bus in front of a bakery.",
        "A man with a grey beard is playing the accordion on a bridge.",
        "Nobody is sitting on the bench because it has just been painted.",
        "The committee will publish its report on the water supply next week.",
    ),
    "de": (
        "Ein Bäcker mit gestreifter Schürze trägt zwei Bleche Brot.",
        "Drei Kinder bauen im Garten einen Turm aus Holzklötzen.",
        "Eine alte Frau repariert ihr Fahrrad neben einer blauen Tür.",
        "Ein kleiner Hund schläft unter dem Küchentisch.",
        "Zwei Arbeiter in orangen Westen malen eine weiße Linie auf die Straße.",
        "Ein Mädchen in einem gelben Regenmantel springt über eine Pfütze.",
        "Mehrere Leute warten vor einer Bäckerei auf den Bus.",
        "Ein Mann mit grauem Bart spielt auf einer Brücke Akkordeon.",
        "Niemand sitzt auf der Bank, weil sie gerade gestrichen wurde.",
        "Der Ausschuss wird nächste Woche seinen Bericht über die Wasserversorgung vorlegen.",
    ),
    "fr": (
        "Un boulanger au tablier rayé porte deux plateaux de pain.",
        "Trois enfants construisent une tour en cubes de bois dans le jardin.",
        "Une vieille femme répare son vélo à côté d'une porte bleue.",
        "Un petit chien dort sous la table de la cuisine.",
        "Deux ouvriers en gilet orange peignent une ligne blanche sur la rue.",
        "Une fille en imperméable jaune saute par-dessus une flaque.",
        "Plusieurs personnes attendent le bus devant une boulangerie.",
        "Un homme à la barbe grise joue de l'accordéon sur un pont.",
        "Personne n'est assis sur le banc, car il vient d'être peint.",
        "Le comité publiera la semaine prochaine son rapport sur l'eau.",
    ),
}
OF_CLDR = {
    "en": (
        "On Saturday, Simon is flying from Bulgaria to Argentina.",
        "The temperature in Indonesia is 31.3 degrees Fahrenheit.",
        "Robert would like to visit Armenia in September.",
        "Anna speaks Polish and French.",
        "The committee will publish its report on the water supply next week.",
    ),
    "de": (
        "Am Samstag fliegt Simon von Bulgarien nach Argentinien.",
        "Robert möchte im September Armenien besuchen.",
        "Der Ausschuss wird nächste Woche seinen Bericht vorlegen.",
    ),
}  # in the patterns of the embedded corpus, and one that is not


def sentences(settings: dict, lang: str, given: Sequence[str] = ()) -> list[str]:
    """The sentences that a model is shown with, as people write them.

    Args:
        settings: of the model's run.
        lang: the source language.
        given: of the publisher's own writing, in place of ours.

    Raises:
        UserError: none are given, and we have none in this language.
    """
    ours = OF_CLDR if settings["dataset"] == "cldr" and settings["data_dir"] is None else SENTENCES
    chosen = list(given or ours.get(lang, ()))
    if not chosen:
        raise UserError(
            f"no sentences in {lang!r} to show the model with: give some of your own writing, --sentences FILE"
        )
    return chosen


def as_trained(sentence: str, lang: str, tokenized: bool, lowercased: bool) -> str:
    """The sentence in the form of the training text: Moses tokens, lowercased, both, or as it is."""
    sentence = sentence.lower() if lowercased else sentence
    return tokenize(sentence, lang) if tokenized else sentence


def translated(model, tokenizer, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Each sentence with its translation, by the model's own search."""
    return list(zip(texts, translate(model, tokenizer, texts), strict=True))


def draw_attention(model, tokenizer, sentence: str, path: Path, title: str) -> None:
    """The encoder-decoder attention of every head while one of these sentences is translated greedily."""
    pipe = VaswaniTranslationPipeline(model, tokenizer, device=model.device)
    seen = pipe(sentence, num_beams=1, return_attentions=True)[0]
    weights = seen["cross_attentions"].float().numpy()
    attention_heads(weights, seen["source_tokens"], seen["target_tokens"], path, title)
