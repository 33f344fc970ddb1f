"""Section 6.1: the search of generation_vaswani.py once more, for translation alone and at a translator's speed.

`generate()` runs it where nothing else is asked for than tokens and scores; the results are those of transformers' loop.
The idea: a sentence's hypotheses stand beside each other as positions of one sequence. So the encoder's keys and values
are there once per sentence, shared by its hypotheses, and the decoder's own are written once and never moved: who descends
from whom is in the mask of self-attention, the only thing that is reordered. Sentences leave the batch as they end.

B sentences, S source tokens, K hypotheses of each, n tokens so far, V rows of the vocabulary.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from .packing_vaswani import bare, logits_of, projection, relu_of, sum_with

BLOCK = 128  # entries of the vocabulary that share a maximum
ROOM = 16  # keys and values are laid out for so many hypotheses more at a time
CACHED = 2**19  # logits at a time, so that the passes over them stay in the cache of a core
FEW = 8  # sentences; for more, attention part by part is faster on a CPU than torch's function
LEAVE = 8  # one in so many sentences must have ended before the batch is cut: the cut copies what stays


class Task(NamedTuple):
    """What is searched for. Lengths count EOS and not the start token."""

    limits: torch.LongTensor  # (B,): most tokens of each sentence
    eos: torch.LongTensor  # ids that end a hypothesis
    pad_token_id: int  # never generated
    min_tokens: int = 0  # EOS is not generated before
    beams: int = 1
    n_best: int = 1
    alpha: float = 0.0  # of the length penalty ((5 + length) / 6)^alpha


def heads(x: torch.Tensor, width: int) -> torch.Tensor:
    return x.unflatten(-1, (-1, width)).transpose(1, 2)  # (B, L, h * width) -> (B, h, L, width)


def by_parts(states: torch.Tensor) -> bool:
    """Whether attention over (B, ...) computes scores, softmax and sum one by one."""
    return states.device.type == "cpu" and len(states) > FEW


def mask_type(states: torch.Tensor) -> torch.dtype:
    """That of the scores to which the mask is added: at least float32 where the softmax is ours."""
    return torch.promote_types(states.dtype, torch.float32) if by_parts(states) else states.dtype


def attend(sublayer, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None):
    """Section 3.2.2 before W^O, (B, L, h * d_v): queries (B, L, h * d_k), keys (B, h, n, d_k), values (B, h, n, d_v). The
    mask, in `mask_type`, is added."""
    queries = heads(queries, sublayer.d_k)
    if by_parts(queries):
        scores = (queries @ keys.transpose(2, 3)).to(mask_type(queries))
        scores = scores.mul_(sublayer.scaling) if mask is None else torch.add(mask, scores, alpha=sublayer.scaling)
        attended = scores.softmax(-1).to(values.dtype) @ values
    else:
        attended = scaled_dot_product_attention(queries, keys, values, mask, scale=sublayer.scaling)
    return attended.transpose(1, 2).flatten(2)


class Layer:
    """VaswaniDecoderLayer, a step at a time, with the keys and values of all steps so far and of the memory."""

    def __init__(self, layer, memory: torch.Tensor):
        self.layer, own, other = layer, layer.self_attn, layer.encoder_attn
        self.project, self.inner = projection(own), relu_of(layer.fc1)
        self.add_own, self.add_other, self.add_outer = map(sum_with, (own.out_proj, other.out_proj, layer.fc2))
        self.queries = bare(other.q_proj)
        norms = layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm
        self.norm_own, self.norm_other, self.norm_outer = map(bare, norms)
        self.length, self.own = 0, None  # with room behind them, hidden by the mask: a step copies nothing
        keys, values = projection(other)(memory)
        self.memory = [heads(keys, other.d_k).contiguous(), heads(values, other.d_v).contiguous()]

    def __call__(self, x: torch.Tensor, mask: torch.Tensor, memory_mask: torch.Tensor | None) -> torch.Tensor:
        own, other = self.layer.self_attn, self.layer.encoder_attn
        queries, keys, values = self.project(x)
        known = self.grown(mask.shape[-1], heads(keys, own.d_k), heads(values, own.d_v))
        x = self.norm_own(self.add_own(x, attend(own, queries, *known, mask)))
        x = self.norm_other(self.add_other(x, attend(other, self.queries(x), *self.memory, memory_mask)))
        return self.norm_outer(self.add_outer(x, self.inner(x)))  # equation (2)

    def grown(self, room: int, *new: torch.Tensor) -> list[torch.Tensor]:
        """Returns all of `room`: the products would copy a slice of it."""
        start, self.length = self.length, self.length + new[0].shape[2]
        if self.own is None:
            self.own = [x[:, :, :0] for x in new]
        if room > self.own[0].shape[2]:
            self.own = [pad(x, (0, 0, 0, room - x.shape[2])) for x in self.own]
        for x, states in zip(self.own, new, strict=True):
            x[:, :, start : self.length] = states
        return self.own

    def keep(self, rows: torch.LongTensor) -> None:
        self.own, self.memory = [x[rows] for x in self.own], [x[rows] for x in self.memory]


class Hypotheses:
    """The decoder over a batch of sentences, each with a tree of hypotheses that grows by one token each a step."""

    def __init__(self, model, memory: torch.Tensor, attention_mask: torch.Tensor | None, longest: int):
        self.decoder, self.depth = model.get_decoder(), 0
        places = torch.arange(longest, device=memory.device)
        self.positions = self.decoder.embed_positions(places, longest)  # (longest, d)
        self.memory_mask = None
        if attention_mask is not None and not attention_mask.all():
            hidden = attention_mask[:, None, None].eq(0)  # (B, 1, 1, S)
            lowest = torch.finfo(memory.dtype).min  # not -inf: of a source without a token nothing else is left
            self.memory_mask = memory.new_zeros(hidden.shape).masked_fill_(hidden, lowest)
        self.logits = logits_of(model.lm_head)
        self.layers = [Layer(layer, memory) for layer in self.decoder.layers]
        # Who descends from whom, as a mask (B, K, nodes of the tree and room for more): 0 for itself and its ancestors.
        self.paths = memory.new_empty(len(memory), 1, 0)

    def extend(self, parents: torch.LongTensor, tokens: torch.LongTensor) -> torch.Tensor:
        """New hypotheses: the old ones at `parents` (B, K), each with one of `tokens` (B, K). Returns logits (B, K, V), maybe
        with more of -inf behind them."""
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        nodes = self.layers[0].length
        new = slice(nodes, nodes + tokens.shape[1])
        room = -(-new.stop // ROOM) * ROOM
        self.paths = pad(self.paths[rows, parents], (0, room - self.paths.shape[-1]), value=-float("inf"))
        self.paths[:, :, new] = torch.full_like(self.paths[0, :, new], -float("inf")).fill_diagonal_(0.0)
        x = self.decoder.embed_tokens(tokens) + self.positions[self.depth]  # (B, K, d)
        mask = self.paths[:, None].to(mask_type(x))
        memory_mask = None if self.memory_mask is None else self.memory_mask.to(mask_type(x))
        for layer in self.layers:
            x = layer(x, mask, memory_mask)
        self.depth += 1
        return self.logits(x)

    def keep(self, rows: torch.LongTensor) -> None:
        """The other sentences leave."""
        self.paths = self.paths[rows]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[rows]
        for layer in self.layers:
            layer.keep(rows)


def best_continuations(logits: torch.Tensor, scores: torch.Tensor, forbidden: list[int], count: int):
    """The `count` best of all hypotheses, with `scores` (B, K), and all tokens (logits: B, K, V; maybe changed) that are
    not forbidden: scores, hypotheses, tokens, each (B, count). What is forbidden keeps its share of the probability.

    A CPU takes long for `topk` over the vocabulary: the best tokens lie in the blocks of the best maxima.
    """
    block = BLOCK if logits.shape[-1] > count * BLOCK else 1
    if logits.shape[-1] % block:  # or else pad() would copy for nothing
        logits = pad(logits, (0, -logits.shape[-1] % block), value=-float("inf"))
    maxima = []
    for part in logits.split(max(1, CACHED // logits[0].numel()) if logits.device.type == "cpu" else len(logits)):
        exact = part.float()  # if that is a copy, it is used again: it is in the cache
        log_probs = torch.log_softmax(exact, -1, out=None if exact is part else exact)
        for token in forbidden:
            log_probs[..., token] = -float("inf")
        maxima.append(log_probs.unflatten(-1, (-1, block)).amax(-1))
    maxima = torch.cat(maxima)  # (B, K, V / block)
    for token in forbidden:
        logits[..., token] = -float("inf")
    highest, chosen = (maxima + scores[..., None]).flatten(1).topk(count)  # blocks of all hypotheses, (B, count)
    rows = torch.arange(len(chosen), device=chosen.device)[:, None] * maxima[0].numel() + chosen
    found = logits.reshape(-1, block)[rows].float()  # (B, count, block)
    likeliest = found.amax(-1)
    found += torch.where(likeliest.isfinite(), highest - likeliest, 0.0)[..., None]  # -inf alone stays so
    best, which = found.flatten(1).topk(count)
    chosen, token = chosen.gather(1, which // block), which % block
    return best, chosen // maxima.shape[-1], chosen % maxima.shape[-1] * block + token


def beam_search(model, memory, attention_mask, start, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """The `n_best` outputs of each sentence, best first, by log-probability over length penalty.

    All `(1 + EOS ids) * K` best continuations may end. One that its limit cuts off counts only where nothing has ended. A
    sentence is done at its limit, or when its best hypothesis alive, would it reach the limit at no further cost, cannot
    beat the best that has ended (for n-best lists: the worst of those kept).

    Args:
        memory: the encoder's output (B, S, d). attention_mask: (B, S) or None. start: the first token, (B,).

    Returns:
        Tokens (B, n_best, longest), filled up behind the end, and scores (B, n_best), -1e9 for a place without output.
    """
    penalty = lambda length: ((5 + length) / 6) ** task.alpha  # noqa: E731
    beams, fill, limits = task.beams, task.pad_token_id or int(task.eos[0]), task.limits
    hypotheses = Hypotheses(model, memory, attention_mask, int(limits.max()))
    sentences = torch.arange(len(memory), device=memory.device)  # which of the batch are still in it
    live = torch.ones_like(sentences, dtype=torch.bool)
    tokens, parents = start[:, None], torch.zeros_like(start)[:, None]
    alive = torch.zeros(len(memory), 1, device=memory.device)  # log-probabilities of the hypotheses (B, K)
    prefixes = start.new_empty(len(memory), 1, 0)
    ended = alive.new_full((len(memory), beams), -float("inf"))  # scores of the outputs so far, best first
    outputs, lengths = start.new_empty(len(memory), beams, 0), start.new_zeros(len(memory), beams)
    results = []
    for n in range(1, int(limits.max()) + 1):
        logits = hypotheses.extend(parents, tokens)
        forbidden = [task.pad_token_id, *(task.eos.tolist() if n <= task.min_tokens else [])]
        scores, parents, tokens = best_continuations(logits, alive, forbidden, max(2, 1 + len(task.eos)) * beams)
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        prefixes = torch.cat((prefixes[rows, parents], tokens[..., None]), dim=-1)  # (B, 2K, n)

        ends = torch.isin(tokens, task.eos) & scores.isfinite()  # -inf: fewer than 2K tokens can be generated
        cut_off = (n >= limits)[:, None] & ~(ended[:, :1].isfinite() | ends.any(1, keepdim=True))
        joins = (ends | cut_off) & live[:, None]
        if joins.any():
            both = torch.cat((ended, (scores / penalty(n)).masked_fill(~joins, -float("inf"))), dim=1)
            ended, best = both.topk(beams)
            outputs = pad(outputs, (0, n - outputs.shape[-1]), value=fill)
            outputs = torch.cat((outputs, prefixes), dim=1)[rows, best]
            lengths = torch.cat((lengths, torch.full_like(tokens, n)), dim=1)[rows, best]

        alive, best = scores.masked_fill(ends, -float("inf")).topk(beams)
        prefixes, parents, tokens = prefixes[rows, best], parents.gather(1, best), tokens.gather(1, best)
        to_beat = ended[:, 0]
        if task.n_best > 1:
            to_beat = torch.where(ended.isfinite(), ended, float("inf")).amin(1).where(to_beat.isfinite(), to_beat)
        horizon = penalty(limits) if task.alpha > 0 else penalty(n + 1)
        live &= (alive[:, 0] / horizon >= to_beat) & (n < limits)

        staying = int(live.sum())
        if len(live) - staying > len(live) // LEAVE or not staying:
            results.append([state[~live] for state in (sentences, outputs, lengths, ended)])
            if not staying:
                break
            rows = live.nonzero()[:, 0]
            hypotheses.keep(rows)
            sentences, limits, alive, prefixes, parents, tokens, ended, outputs, lengths = (
                x[rows] for x in (sentences, limits, alive, prefixes, parents, tokens, ended, outputs, lengths)
            )
            live = live[rows]
    order = torch.cat([where for where, *_ in results]).argsort()
    lengths, scores = (torch.cat([result[i][:, : task.n_best] for result in results])[order] for i in (2, 3))
    empty = scores.isinf()  # a place in the list that nothing has filled
    longest = int(lengths.masked_fill(empty, 0).max())
    found = [outputs[:, : task.n_best, :longest] for _, outputs, _, _ in results]
    found = torch.cat([pad(outputs, (0, longest - outputs.shape[-1]), value=fill) for outputs in found])[order]
    return found.masked_fill(empty[..., None], int(task.eos[0])), scores.masked_fill(empty, -1e9)


def greedy_search(model, memory, attention_mask, start, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token, one by one: tokens (B, longest), with padding behind the end, and their log-probabilities
    (B,), of what may be generated."""
    hypotheses = Hypotheses(model, memory, attention_mask, int(task.limits.max()))
    sentences, limits = torch.arange(len(memory), device=memory.device), task.limits
    outputs = start.new_full((len(memory), int(limits.max())), task.pad_token_id)
    scores = torch.zeros(len(memory), device=memory.device)
    live, tokens, parents = torch.ones_like(start, dtype=torch.bool), start, torch.zeros_like(start)[:, None]
    for n in range(1, int(limits.max()) + 1):
        logits = hypotheses.extend(parents, tokens[:, None])[:, 0].float()  # (B, V)
        logits[:, task.pad_token_id] = -float("inf")
        if n <= task.min_tokens:
            logits[:, task.eos] = -float("inf")
        tokens = logits.argmax(-1)
        outputs[sentences[live], n - 1] = tokens[live]
        scores[sentences[live]] += logits.log_softmax(-1).gather(1, tokens[:, None])[live, 0]
        live &= ~torch.isin(tokens, task.eos) & (n < limits)
        staying = int(live.sum())
        if not staying:
            break
        if len(live) - staying > len(live) // LEAVE:
            rows = live.nonzero()[:, 0]
            hypotheses.keep(rows)
            sentences, limits, tokens, parents = (state[rows] for state in (sentences, limits, tokens, parents))
            live = live[rows]
    return outputs[:, :n], scores


__all__ = ["Task", "beam_search", "greedy_search"]
