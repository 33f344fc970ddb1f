"""Section 6.1 for users: text in, text out. transformers 5 has no translation pipeline of its own any more."""

import re
from collections.abc import Iterable

import torch
from transformers import Pipeline

from .packing_vaswani import packed_linears

SENTENCE_END = re.compile(r"""((?<=[.!?…])["'”’»)\]]*\s+(?=[^\sa-zà-öø-ÿ])|\n+)""")

SURROGATE = re.compile("[\ud800-\udfff]")


def split_sentences(text: str) -> list[str]:
    """Sentences and, between them, the white space that separated them: odd places are separators.

    The rule: a sentence ends behind . ! ? or ... (and closing quotes or brackets) where white space and something other
    than a small letter follow, and at line ends. Abbreviations before capitals ("Dr. Who") are split too.
    """
    parts = SENTENCE_END.split(text)
    for i in range(1, len(parts), 2):  # closing quotes belong to the sentence before
        closing = parts[i].rstrip()
        parts[i - 1], parts[i] = parts[i - 1] + closing, parts[i][len(closing) :]
    return parts


class VaswaniTranslationPipeline(Pipeline):
    """Translates a string, a list of strings, or a column of a dataset.

    `pipe("A house.")` gives `[{"translation_text": "Ein Haus."}]`, `pipe([...])` a list of such dictionaries in the order
    of the input, a list of lists where `num_return_sequences` asks for several. Batches are made by length; that changes
    the speed only. Any option of `generate()` may be given, here or when the pipeline is made.

    Args:
        max_tokens: padded source tokens in one batch, times the number of beams (4096).
        split_sentences: translate long text sentence by sentence (off; see `split_sentences` for the rule).
        return_scores: adds "score", the log-probability of the translation (with beams: over the length penalty; when
            sampling: under the distribution that was sampled from).
        return_attentions: adds "cross_attentions", a tensor (layers, heads, target tokens, source tokens), with
            "source_tokens" and "target_tokens"; for one sequence per text.

    Raises:
        TypeError: an input that is not a string. ValueError: a lone surrogate, which is no text.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False
    _pipeline_calls_generate = True

    def _sanitize_parameters(
        self, max_tokens=None, split_sentences=None, return_scores=None, return_attentions=None, **kw
    ):
        ours = {
            "split_sentences": split_sentences,
            "return_scores": return_scores,
            "return_attentions": return_attentions,
        }
        ours = {name: value for name, value in ours.items() if value is not None}
        batching = {} if max_tokens is None else {"max_tokens": max_tokens}
        return batching, kw, ours

    def __call__(self, inputs, num_workers=None, batch_size=None, **kwargs):  # those two: max_tokens decides
        batching, options, ours = self._sanitize_parameters(**kwargs)
        batching = {"max_tokens": 4096, **self._preprocess_params, **batching}
        options, ours = {**self._forward_params, **options}, {**self._postprocess_params, **ours}
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise TypeError(f"input {number} is a {type(text).__name__}: the pipeline translates strings")
            if SURROGATE.search(text):
                raise ValueError(f"sentence {number} holds a lone surrogate: it is not valid Unicode; remove it")
        if ours.pop("split_sentences", False):
            results = self._translate_split(texts, batching["max_tokens"], options, ours)
        else:
            results = self._translate(texts, batching["max_tokens"], options, **ours)
        if isinstance(inputs, str):
            return results[0]
        several = self._count(self._prepare_generate_kwargs(options)) > 1
        return results if several else [result[0] for result in results]

    def _count(self, options: dict) -> int:
        return self._get_set_generation_params(options).get("num_return_sequences") or 1

    def _translate_split(self, texts: list[str], max_tokens: int, options: dict, ours: dict) -> list[list[dict]]:
        if any(ours.values()):
            raise ValueError("split_sentences gives text alone: leave out return_scores and return_attentions")
        pieces = [split_sentences(text) for text in texts]
        sentences = [sentence for parts in pieces for sentence in parts[::2]]
        translated = iter(result[0]["translation_text"] for result in self._translate(sentences, max_tokens, options))
        joined = ("".join(next(translated) if i % 2 == 0 else part for i, part in enumerate(parts)) for parts in pieces)
        return [[{"translation_text": text}] for text in joined]

    def _translate(self, texts: list[str], max_tokens: int, options: dict, **ours) -> list[list[dict]]:
        """Each text's translations; an empty one stays empty, and its neighbours in a batch are of its length."""
        empty = {"translation_text": ""} | ({"score": 0.0} if ours.get("return_scores") else {})
        if ours.get("return_attentions"):
            empty |= {"cross_attentions": torch.empty(0), "source_tokens": [], "target_tokens": []}
        texts = [text.replace("\0", "") for text in texts]  # as in training
        results = [[empty.copy()] for _ in texts]
        full = [i for i, text in enumerate(texts) if text.strip()]
        ids = dict(zip(full, self.tokenizer([texts[i] for i in full])["input_ids"], strict=True)) if full else {}
        options = self._prepare_generate_kwargs(options)
        count = self._count(options)
        if ours.get("return_attentions") and count > 1:
            raise ValueError("return_attentions shows one translation: leave out num_return_sequences")
        if ours.get("return_scores", False) or count > 1:
            own = hasattr(self.model.generation_config, "max_length_offset")  # others keep every step's scores
            options |= {"return_dict_in_generate": True, "output_sequences_scores" if own else "output_scores": True}
        rows_each = max(count, self._get_set_generation_params(options).get("num_beams") or 1)
        waiting = sorted(full, key=lambda i: -len(ids[i]))
        with torch.no_grad(), packed_linears(self.model):
            while waiting:
                size = max(1, max_tokens // (rows_each * len(ids[waiting[0]])))
                rows, waiting = waiting[:size], waiting[size:]
                batch = self.preprocess([ids[i] for i in rows])
                outputs = self.forward(batch, **options)
                for i, result in zip(rows, self.postprocess(outputs, **ours), strict=True):
                    results[i] = result
        return results

    def preprocess(self, ids: list[list[int]]) -> dict:
        return dict(self.tokenizer.pad({"input_ids": ids}, return_tensors="pt"))

    def _forward(self, inputs: dict, **options) -> dict:
        output = self.model.generate(**inputs, **options)
        if isinstance(output, torch.Tensor):
            return {**inputs, "sequences": output, "scores": None}
        scores = getattr(output, "sequences_scores", None)
        if scores is None and output.scores:  # greedy or sampled: the sum of the tokens' log-probabilities
            steps = self.model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
            ended = output.sequences[:, 1:].eq(self.model.config.pad_token_id)
            scores = steps.masked_fill(ended, 0).sum(-1)
        return {**inputs, "sequences": output.sequences, "scores": scores}

    def postprocess(
        self, outputs: dict, return_scores: bool = False, return_attentions: bool = False
    ) -> list[list[dict]]:
        sequences, scores = outputs["sequences"], outputs["scores"]
        decoded = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        found = [{"translation_text": text} for text in decoded]
        scores = [0.0] * len(found) if scores is None else scores.tolist()
        if return_scores:
            for result, score in zip(found, scores, strict=True):
                result["score"] = score
        if return_attentions:
            for result, attention in zip(found, self._attentions(outputs), strict=True):
                result.update(attention)
        # Places of an n-best list that the search has not filled score -1e9: they are no translations.
        count = len(sequences) // len(outputs["input_ids"])
        groups = [
            list(zip(found[i : i + count], scores[i : i + count], strict=True)) for i in range(0, len(found), count)
        ]
        return [[result for result, score in group if score > -1e8] or [group[0][0]] for group in groups]

    @torch.no_grad()
    def _attentions(self, outputs: dict) -> Iterable[dict]:
        """Encoder-decoder attention of each translation, from one pass over it: row t is where token t was read from."""
        used = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")  # the only one that keeps the weights
        try:
            inputs = {name: outputs[name].to(self.model.device) for name in ("input_ids", "attention_mask")}
            sequences = outputs["sequences"].to(self.model.device)
            attentions = self.model(
                **inputs, decoder_input_ids=sequences[:, :-1], output_attentions=True
            ).cross_attentions
        finally:
            self.model.set_attn_implementation(used)
        weights = torch.stack(attentions, dim=1).cpu()  # (B, layers, h, T, S)
        for row, source, mask, target in zip(
            weights, outputs["input_ids"], outputs["attention_mask"], sequences[:, 1:].cpu(), strict=True
        ):
            eos = target.eq(self.tokenizer.eos_token_id).nonzero()
            length, width = (int(eos[0]) + 1 if len(eos) else len(target)), int(mask.sum())
            yield {
                "cross_attentions": row[:, :, :length, :width],
                "source_tokens": self._pieces(source[:width]),
                "target_tokens": self._pieces(target[:length]),
            }

    def _pieces(self, ids: torch.Tensor) -> list[str]:
        return [self.tokenizer.decode([token]) for token in ids.tolist()]


__all__ = ["VaswaniTranslationPipeline"]
