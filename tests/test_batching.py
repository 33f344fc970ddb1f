import numpy as np
import pytest
import torch
from datasets import Dataset

from vaswani.batching import TokenBatches, by_length, collate
from vaswani.loss import IGNORE


def lengths(pairs: int = 3000, seed: int = 0):
    rng = np.random.default_rng(seed)
    target = np.clip(rng.lognormal(np.log(14), 0.5, pairs), 2, 100).astype(int)
    source = np.clip(target * rng.normal(1, 0.15, pairs), 2, 100).astype(int)
    return source, target


def epoch_rows(batches: TokenBatches, epoch: int = 0) -> list[np.ndarray]:
    return [np.concatenate(batch.micro_batches) for batch in batches.epoch(epoch)]


def test_each_pair_once_and_about_as_many_tokens():
    source, target = lengths()
    batches = TokenBatches(source, target, tokens_per_batch=1000)
    rows = epoch_rows(batches)
    assert sorted(np.concatenate(rows)) == list(range(len(source)))
    tokens = [target[batch].sum() for batch in rows]
    assert np.mean(tokens) == pytest.approx(1000, rel=0.02)
    assert min(tokens) > 750 and max(tokens) < 1250
    assert len(rows) == batches.batches_per_epoch
    assert [batch.target_tokens for batch in batches.epoch(0)] == tokens


def padding(side: np.ndarray, rows: list[np.ndarray]) -> float:
    return 1 - side.sum() / sum(len(batch) * side[batch].max() for batch in rows)


@pytest.mark.parametrize(("pairs", "most"), [(30_000, 0.06), (300_000, 0.02)])
def test_little_padding(pairs, most):
    source, target = lengths(pairs)
    rows = epoch_rows(TokenBatches(source, target, tokens_per_batch=4096))
    assert padding(source, rows) < most and padding(target, rows) < most


def test_buckets_as_the_authors_code_has_them():
    source, target = lengths(20_000)
    for method, bounds in (("tensor2tensor", [8, 12, 16, 24, 32, 48, 64, 96, 128]),
                           ("tensor2tensor_big", [8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112])):  # fmt: skip
        batches = TokenBatches(source, target, tokens_per_batch=2000, method=method)
        rows = epoch_rows(batches)
        assert sorted(np.concatenate(rows)) == list(range(len(source)))
        assert np.mean([target[batch].sum() for batch in rows]) == pytest.approx(2000, rel=0.03)
        sizes: dict[int, list[int]] = {}
        for batch in rows:
            buckets = np.unique(np.searchsorted(bounds, np.maximum(source[batch], target[batch])))
            assert len(buckets) == 1  # all sentences of an update, so all processes, are in one bucket of length
            sizes.setdefault(bounds[buckets[0]], []).append(len(batch))
        positions = [bound * np.mean(size) for bound, size in sizes.items() if len(size) > 8]
        assert max(positions) / min(positions) < 1.15  # as many sentences as fill the same number of padded positions


def test_the_mean_of_the_authors_batches():
    """32,768 padded positions were about 25,000 target tokens on lengths like WMT14's: our setting names the latter."""
    rng = np.random.default_rng(0)
    target = np.clip(rng.lognormal(np.log(28), 0.55, 200_000), 2, 200).astype(int)
    source = np.clip(target * rng.normal(1, 0.15, 200_000), 2, 200).astype(int)
    batches = TokenBatches(source, target, tokens_per_batch=25_000, method="tensor2tensor")
    longest = [max(source[batch].max(), target[batch].max()) * len(batch) for batch in epoch_rows(batches)]
    assert 28_000 < np.median(longest) < 40_000


def test_the_plan_of_an_epoch_is_kept(tmp_path):
    source, target = lengths()
    options = {"tokens_per_batch": 500, "plans": tmp_path / "plans"}
    expected = epoch_rows(TokenBatches(source, target, tokens_per_batch=500), epoch=1)
    for _ in range(2):  # made, then read
        rows = epoch_rows(TokenBatches(source, target, **options), epoch=1)
        assert all(np.array_equal(a, b) for a, b in zip(expected, rows, strict=True))
    resumed = TokenBatches(source, target, **options)
    resumed._plan = None  # would fail: the file is enough
    assert np.array_equal(np.concatenate(next(resumed.epoch(1, start=3)).micro_batches), expected[3])
    for epoch in range(2, 8):
        next(TokenBatches(source, target, **options).epoch(epoch))
    assert len(list((tmp_path / "plans").iterdir())) == 2  # not one for every epoch for ever
    (tmp_path / "file").touch()
    unwritable = TokenBatches(source, target, tokens_per_batch=500, plans=tmp_path / "file" / "plans")
    assert np.array_equal(epoch_rows(unwritable, epoch=1)[3], expected[3])
    other = epoch_rows(TokenBatches(source, target, seed=2, **options), epoch=7)
    assert not all(np.array_equal(a, b) for a, b in zip(expected, other, strict=False))


def test_order_follows_from_seed_and_epoch():
    source, target = lengths()
    first, again = (epoch_rows(TokenBatches(source, target, tokens_per_batch=500, seed=3)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other_epoch = epoch_rows(TokenBatches(source, target, tokens_per_batch=500, seed=3), epoch=1)
    other_seed = epoch_rows(TokenBatches(source, target, tokens_per_batch=500, seed=4))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other_epoch, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other_seed, strict=True))
    # batches come in random order of length, not short ones first
    means = [target[batch].mean() for batch in first]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("max_tokens", [None, 400])
def test_the_same_batches_for_any_number_of_processes(world_size, max_tokens):
    source, target = lengths(800)
    options = {"tokens_per_batch": 700, "max_tokens": max_tokens}
    alone = list(TokenBatches(source, target, **options).epoch(0))
    ranks = [
        list(TokenBatches(source, target, rank=rank, world_size=world_size, **options).epoch(0))
        for rank in range(world_size)
    ]
    for i, batch in enumerate(alone):
        shares = [ranks[rank][i] for rank in range(world_size)]
        assert len({len(share.micro_batches) for share in shares}) == 1  # or one process would wait for ever
        together = np.concatenate([np.concatenate(share.micro_batches) for share in shares])
        assert sorted(together) == sorted(np.concatenate(batch.micro_batches))
        assert all(share.target_tokens == batch.target_tokens for share in shares)
        if max_tokens:
            for rows in [rows for share in shares for rows in share.micro_batches if len(rows)]:
                assert len(rows) * max(source[rows].max(), target[rows].max()) <= max_tokens


def test_resumes_anywhere():
    source, target = lengths()
    batches = TokenBatches(source, target, tokens_per_batch=500)
    whole = list(batches.epoch(2))
    for start in (0, 1, 17, len(whole) - 1, len(whole)):
        rest = list(batches.epoch(2, start=start))
        assert len(rest) == len(whole) - start
        assert all(
            np.array_equal(a.micro_batches[0], b.micro_batches[0]) for a, b in zip(rest, whole[start:], strict=True)
        )


def test_a_pair_longer_than_a_batch():
    source, target = np.array([5, 900, 5, 5]), np.array([5, 900, 5, 5])
    batches = TokenBatches(source, target, tokens_per_batch=10)
    rows = epoch_rows(batches)
    assert all(len(batch) for batch in rows)
    assert sorted(np.concatenate(rows)) == [0, 1, 2, 3]


def test_very_long_sentences():
    """The table of lengths does not grow with them."""
    source, target = np.array([5, 20_000, 5, 31_000]), np.array([5, 30_000, 5, 2_500])
    batches = TokenBatches(source, target, tokens_per_batch=1000)
    assert batches.groups.of_lengths.size < 5_000_000
    assert sorted(np.concatenate(epoch_rows(batches))) == [0, 1, 2, 3]


def test_micro_batches_are_full():
    source, target = lengths(29_000)
    batches = TokenBatches(source, target, tokens_per_batch=25_000, max_tokens=2048)
    parts = [rows for batch in batches.epoch(0) for rows in batch.micro_batches]
    padded = sum(len(rows) * max(source[rows].max(), target[rows].max()) for rows in parts if len(rows))
    assert padded < 1.1 * np.maximum(source, target).sum()


def test_a_damaged_plan_is_made_again(tmp_path):
    source, target = lengths()
    options = {"tokens_per_batch": 500, "plans": tmp_path / "plans"}
    expected = epoch_rows(TokenBatches(source, target, **options))
    (file,) = (tmp_path / "plans").iterdir()
    for content in (b"", file.read_bytes()[:100]):
        file.write_bytes(content)
        again = epoch_rows(TokenBatches(source, target, **options))
        assert all(np.array_equal(a, b) for a, b in zip(expected, again, strict=True))


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="90 tokens, over max_tokens=64: raise it, or lower max_length"):
        TokenBatches(np.array([5, 90]), np.array([5, 5]), tokens_per_batch=10, max_tokens=64)
    with pytest.raises(ValueError, match="no training pairs"):
        TokenBatches(np.array([]), np.array([]), tokens_per_batch=10)


def test_by_length():
    sizes = np.array([3, 50, 7, 7, 200])
    groups = by_length(sizes, max_tokens=60)
    assert sorted(np.concatenate(groups)) == [0, 1, 2, 3, 4]
    assert [group.tolist() for group in groups] == [[4], [1], [2, 3, 0]]


def test_collate_pads_each_side_by_its_own():
    dataset = Dataset.from_dict({"input_ids": [[5, 6, 1], [7, 1]], "labels": [[8, 1], [9, 9, 9, 1]]})
    batch = collate(dataset, np.array([1, 0]), pad_token_id=0)
    assert batch["input_ids"].tolist() == [[7, 1, 0], [5, 6, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[9, 9, 9, 1], [8, 1, IGNORE, IGNORE]]
    assert batch["input_ids"].dtype == torch.long
    nothing = collate(dataset, np.array([], dtype=int), pad_token_id=0)
    assert nothing["labels"].eq(IGNORE).all() and nothing["input_ids"].shape[0] == 1
