"""Section 6.1: decoding as the paper did it, inside transformers' `generate()`.

Beam search with the length penalty of Wu et al. 2016 (GNMT), at most source length + 50 tokens, ended when no hypothesis
that still grows can win. Everything else is transformers' own; `length_penalty_type="length"` gives its beam search too.
Plain translation, which asks for nothing else, runs in search_vaswani.py: the same outputs, sooner.
"""

import copy

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    GenerateBeamEncoderDecoderOutput,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
)

from .packing_vaswani import hooked, packed_linears
from .search_vaswani import Task, beam_search, greedy_search

DEAD = -1e8  # below: a place in transformers' beam that no hypothesis fills (-1e9), or a token that cannot be (-inf)
EXTRA_LENGTH = 50  # "we set the maximum output length during inference to input length + 50"

OUR_SETTINGS = {"length_penalty_type", "max_length_offset", "max_length_offset_scope", "output_sequences_scores"}


class SuppressPad(LogitsProcessor):
    """Padding is never generated: its row of the softmax is trained by label smoothing only and stands for no text."""

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        scores = scores.clone()
        scores[:, self.pad_token_id] = -float("inf")
        return scores


class SourceLengthLimit(StoppingCriteria):
    """Each sentence has its own limit of generated tokens, (B,), so that its neighbours in a batch change nothing."""

    def __init__(self, limits: torch.LongTensor, prompt_length: int):
        self.limits, self.prompt_length = limits, prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores, **kwargs) -> torch.BoolTensor:
        limits = self.limits.repeat_interleave(len(input_ids) // len(self.limits))  # one row per beam
        return input_ids.shape[1] - self.prompt_length >= limits.to(input_ids.device)


PLAIN_CRITERIA = (SourceLengthLimit, MaxLengthCriteria, EosTokenCriteria)
PLAIN_INPUTS = {"encoder_outputs", "attention_mask", "cache", "use_cache", "logits_to_keep"}


class GnmtPenalty(float):
    """lp(Y) = ((5 + |Y|) / 6)^alpha, |Y| counting EOS. transformers divides scores by `length ** length_penalty`, which
    with this exponent is lp(length). It also carries what the search must know of its sentences."""

    limits: torch.LongTensor  # (B, 1): most tokens that each sentence may have
    eos_token_ids: torch.LongTensor
    n_best: bool

    def at(self, length):  # an int, or a tensor of lengths
        return ((5 + length) / 6) ** float(self)

    __rpow__ = at  # what `int ** penalty` calls


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's search. On `generation_config`, and so as arguments of `generate()`:

    - `length_penalty_type`: "gnmt", with `length_penalty` as alpha (0.6 in the paper), or "length", transformers' own.
    - `max_length_offset`: tokens that the output may be longer than the source, EOS counted in both (50); `max_length`
      or `max_new_tokens` take its place.
    - `max_length_offset_scope`: "sentence", or "batch": the longest source of the batch counts for all, as in
      tensor2tensor.
    - `output_sequences_scores`: with `return_dict_in_generate`, the score of each output without those of every step and
      entry of the vocabulary, which `output_scores` keeps and returns.
    """

    def _default_generation_config(self) -> GenerationConfig:
        """What every new model carries. A fresh object: one derived from the model config loses its custom keys."""
        return GenerationConfig(
            pad_token_id=self.config.pad_token_id,
            eos_token_id=self.config.eos_token_id,
            decoder_start_token_id=self.config.decoder_start_token_id,
            length_penalty_type="gnmt",
            max_length_offset=EXTRA_LENGTH,
            max_length_offset_scope="sentence",
        )

    def generate(
        self,
        inputs=None,
        generation_config=None,
        logits_processor=None,
        stopping_criteria=None,
        *args,
        attention_mask=None,
        **kwargs,
    ):
        """transformers' `generate()`; without an `attention_mask` padding in the source is hidden, as in `forward`. Plain
        translation runs in inference mode: clone what a hook keeps of it, to train on that."""
        unknown = {name for name in OUR_SETTINGS & kwargs.keys() if not hasattr(self.generation_config, name)}
        if ours := {name: kwargs.pop(name) for name in unknown}:  # transformers knows custom settings by a config only
            generation_config = copy.deepcopy(generation_config or self.generation_config)
            generation_config.update(**ours, allow_custom_entries=True)
            kwargs = generation_config.update(**kwargs)  # it takes the place of all other settings
        source = next((x for x in (inputs, kwargs.get("input_ids")) if x is not None), None)  # (B, S)
        if source is not None and not isinstance(source, torch.Tensor):
            raise TypeError(f"generate() takes token ids as a tensor (B, S), not a {type(source).__name__}")
        if source is not None and attention_mask is None:
            attention_mask = source.ne(self.config.pad_token_id).long()
        if source is None:
            encoded = kwargs.get("encoder_outputs")
            source = kwargs.get("inputs_embeds") if encoded is None else encoded[0]
        if attention_mask is not None:
            kwargs["attention_mask"] = attention_mask
        limits = None if source is None else self._limits(source, attention_mask, generation_config, kwargs)
        if limits is not None:
            prompt = kwargs.get("decoder_input_ids")
            limit = SourceLengthLimit(limits, 1 if prompt is None else prompt.shape[1])
            stopping_criteria = StoppingCriteriaList([limit, *(stopping_criteria or [])])
        return super().generate(inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs)

    def _limits(self, source, attention_mask, generation_config, kwargs) -> torch.LongTensor | None:
        """Tokens that each sentence may have (B,); None where the caller or the config set a length."""

        def option(name, default=None):
            for settings in (kwargs, vars(generation_config or GenerationConfig()), vars(self.generation_config)):
                if settings.get(name) is not None:
                    return settings[name]
            return default

        if option("max_length") or option("max_new_tokens") or option("max_length_offset") is None:
            return None
        if (scope := option("max_length_offset_scope", "sentence")) not in ("sentence", "batch"):
            raise ValueError(f"max_length_offset_scope={scope!r}: choose 'sentence' or 'batch'")
        lengths = torch.full((len(source),), source.shape[1], device=source.device)
        if attention_mask is not None and scope == "sentence":
            lengths = attention_mask.sum(-1)
        return lengths + option("max_length_offset")

    def _prepare_generated_length(self, generation_config, has_default_max_length, *args, **kwargs):
        """The length limit counts from the source, unless the caller set `max_length` or `max_new_tokens`; learned
        positions end where their table does."""
        if has_default_max_length and _counts_from_source(generation_config):
            limit = kwargs["inputs_tensor"].shape[1] + generation_config.max_length_offset
            generation_config.max_length = kwargs["input_ids_length"] + limit
            if self.config.position_encoding == "learned":
                generation_config.max_length = min(generation_config.max_length, self.config.max_position_embeddings)
            has_default_max_length = False
        return super()._prepare_generated_length(generation_config, has_default_max_length, *args, **kwargs)

    def _validate_generated_length(self, generation_config, input_ids_length, has_default_max_length):
        """transformers warns of its own default length; ours comes from the paper."""
        has_default_max_length = has_default_max_length and not _counts_from_source(generation_config)
        super()._validate_generated_length(generation_config, input_ids_length, has_default_max_length)

    def _get_logits_processor(self, *args, **kwargs):
        processors = super()._get_logits_processor(*args, **kwargs)
        processors.insert(0, SuppressPad(self.config.pad_token_id))  # first: top-k must not be left with padding alone
        return processors

    # ------------------------------------------------------------------------------------------- plain translation
    def _plain_task(self, input_ids, logits_processor, stopping_criteria, config, kwargs) -> Task | None:
        """What search_vaswani.py is to find; None where an option, a hook or a model asks for transformers' own loop."""
        eos, min_tokens = config._eos_token_tensor, 0
        for processor in logits_processor:  # each but padding's forbids EOS at the start
            if type(processor) is MinNewTokensLengthLogitsProcessor:
                min_tokens = max(min_tokens, processor.min_new_tokens)
            elif type(processor) is MinLengthLogitsProcessor:
                min_tokens = max(min_tokens, processor.min_length - 1)
            elif type(processor) is not SuppressPad:
                return None
        cache, unusual = kwargs.get("cache"), kwargs.keys() - PLAIN_INPUTS
        output_options = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
        layers = self.get_decoder().layers
        inside = [part for layer in layers for part in (layer, layer.self_attn, layer.encoder_attn)]
        bypassed = (self, self.model, self.get_decoder(), *inside)  # the plain search does not call their forward
        replaced = any("forward" in vars(x) or hooked(x) for x in bypassed)
        if (
            self.training
            or replaced
            or self.lm_head._forward_hooks  # the search writes into the logits
            or "prepare_inputs_for_generation" in vars(self)
            or self.config._attn_implementation not in ("eager", "sdpa")
            or eos is None
            or input_ids.shape[1] > 1
            or any(type(criterion) not in PLAIN_CRITERIA for criterion in stopping_criteria)
            or any(kwargs[name] is not None and kwargs[name] is not False for name in unusual)
            or cache is None
            or cache.get_seq_length() > 0
            or config.cache_implementation
            or config.do_sample
            or config.early_stopping is True
            or any(getattr(config, name) for name in output_options)
            or (config.return_dict_in_generate and not getattr(config, "output_sequences_scores", None))
            or self.config.vocab_size <= (2 + len(eos)) * (config.num_beams + 1)
        ):
            return None
        limits = _limits_of(stopping_criteria, config, input_ids)
        return Task(
            limits,
            eos,
            self.config.pad_token_id,
            min_tokens,
            config.num_beams,
            config.num_return_sequences,
            config.length_penalty,
        )

    def _run(self, search, task: Task, input_ids, generation_config, kwargs):
        memory, mask = kwargs["encoder_outputs"][0], kwargs.get("attention_mask")
        memory, mask, start = (  # transformers has repeated them for every hypothesis
            None if x is None else x[:: task.beams] for x in (memory, mask, input_ids[:, 0])
        )
        with torch.inference_mode(), packed_linears(self.get_decoder()), packed_linears(self.lm_head):
            tokens, scores = search(self, memory, mask, start, task)
        tokens, scores = tokens.flatten(0, -2).clone(), scores.clone()  # what leaves inference mode must be a copy
        sequences = torch.cat((start.repeat_interleave(task.n_best)[:, None], tokens), dim=1)
        if not generation_config.return_dict_in_generate:
            return sequences
        return GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=scores.flatten())

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        task = self._plain_task(input_ids, logits_processor, stopping_criteria, generation_config, kwargs)
        if task is not None:
            return self._run(greedy_search, task, input_ids, generation_config, kwargs)
        generation_config = _with_all_scores(generation_config)
        return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)

    # ------------------------------------------------------------------------------------------------- beam search
    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        kind = getattr(generation_config, "length_penalty_type", None) or "length"
        if kind not in ("gnmt", "length"):
            raise ValueError(f"length_penalty_type={kind!r}: choose 'gnmt' or 'length'")
        if kind == "gnmt":
            task = self._plain_task(input_ids, logits_processor, stopping_criteria, generation_config, kwargs)
            if task is not None:
                return self._run(beam_search, task, input_ids, generation_config, kwargs)
        generation_config = _with_all_scores(generation_config)
        if kind == "gnmt":
            penalty = GnmtPenalty(generation_config.length_penalty)
            penalty.limits = _limits_of(stopping_criteria, generation_config, input_ids)[:, None]
            eos = generation_config._eos_token_tensor
            penalty.eos_token_ids = torch.tensor([-1], device=input_ids.device) if eos is None else eos
            penalty.n_best = generation_config.num_return_sequences > 1
            generation_config.length_penalty = penalty
        return super()._beam_search(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)

    def _update_finished_beams(self, **state):
        """All 2K candidates may finish (transformers: only the K best). One that its limit cuts off is kept only where
        nothing has finished: then the hypotheses still alive are the result."""
        penalty = state["length_penalty"]
        if not isinstance(penalty, GnmtPenalty):
            return super()._update_finished_beams(**state)
        at_limit = state["cur_len"] + 1 - state["decoder_prompt_len"] >= penalty.limits  # (B, 1)
        dead = state["topk_log_probs"] < DEAD  # (B, 2K)
        ended = torch.isin(state["topk_running_sequences"][:, :, state["cur_len"]], penalty.eos_token_ids) & ~dead
        nothing = ~(state["is_sent_finished"].any(1, keepdim=True) | ended.any(1, keepdim=True))
        hits = torch.where(at_limit, ended | nothing, state["next_token_hits_stopping_criteria"])
        state["next_token_hits_stopping_criteria"] = hits & ~dead & state["is_early_stop_heuristic_unsatisfied"]
        state["top_num_beam_mask"] = torch.ones_like(state["top_num_beam_mask"])
        sequences, scores, beam_indices, finished = super()._update_finished_beams(**state)
        # A place in the n-best list that nothing has filled is empty, and not a copy of what still grows.
        sequences[:, :, state["decoder_prompt_len"] :].masked_fill_(
            ~finished[..., None], penalty.eos_token_ids[0].clamp_min(0)
        )
        return (
            sequences,
            scores.masked_fill(~finished, -1e9),
            beam_indices.masked_fill(~finished[..., None], -1),
            finished,
        )

    def _check_early_stop_heuristic(self, **state):
        """A sentence is done at its limit, or when the best hypothesis alive, would it reach the limit at no further
        cost, cannot beat the best finished one; for n-best lists the worst of those finished so far."""
        penalty = state["length_penalty"]
        if not isinstance(penalty, GnmtPenalty):
            return super()._check_early_stop_heuristic(**state)
        finished, scores = state["is_sent_finished"], state["beam_scores"]
        to_beat = scores.masked_fill(~finished, float("inf")).amin(1) if penalty.n_best else scores.amax(1)
        to_beat = to_beat.masked_fill(~finished.any(1), -float("inf"))[:, None]
        length = state["cur_len"] - state["decoder_prompt_len"]
        horizon = penalty.limits if penalty > 0 else length + 1
        possible = state["running_beam_scores"][:, :1] / penalty.at(horizon)
        return state["is_early_stop_heuristic_unsatisfied"] & (possible >= to_beat) & (length < penalty.limits)


def _limits_of(stopping_criteria, generation_config, input_ids: torch.LongTensor) -> torch.LongTensor:
    """Most tokens that each sentence of the batch may have, (B,); at least one, for the loops look behind the first."""
    whole = generation_config.max_length - input_ids.shape[1]
    own = [criterion.limits for criterion in stopping_criteria if isinstance(criterion, SourceLengthLimit)]
    batch_size = len(input_ids) // generation_config.num_beams
    return (own or [torch.full((batch_size,), whole)])[0].to(input_ids.device).clamp_max(whole).clamp_min(1)


def _with_all_scores(generation_config: GenerationConfig) -> GenerationConfig:
    """A copy for transformers' loop, which gives the scores of outputs only with those of all steps."""
    generation_config = copy.copy(generation_config)
    if getattr(generation_config, "output_sequences_scores", None):
        generation_config.output_scores = True
    return generation_config


def _counts_from_source(generation_config: GenerationConfig) -> bool:
    offset = getattr(generation_config, "max_length_offset", None)
    return offset is not None and generation_config.max_new_tokens is None


__all__ = ["VaswaniGenerationMixin"]
