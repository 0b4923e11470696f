"""Greedy decoding, sampling, and the log-likelihood of given continuations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from pe_bench.config import IGNORE, check_ids
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.oom_retry import retry_in_halves
from pe_bench.decoder.pass_checks import check_evaluation
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError

CHECK_END_EVERY = {"cuda": 16}
"""Check for end-of-sequence every n tokens; each check synchronises with the GPU."""


class LanguageModel(Protocol):
    """Interface that generation needs from a model; avoids a circular import with `Decoder`."""

    lm_head: nn.Linear
    training: bool

    @property
    def encoding(self) -> Encoding: ...

    def __call__(self, tokens: Tensor, cache: Cache) -> Tensor: ...

    def hidden(
        self, tokens: Tensor, cache: Cache | None = None, *, final_lengths: Tensor | None = None
    ) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def token_losses(
        self, tokens: Tensor, targets: Tensor, *, final_lengths: Tensor | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Sampling:
    """Options of sampling.

    Attributes:
        top_k: number of most probable tokens to sample from; 0: all.
        top_p: sample from the most probable tokens that together reach this probability.
        seed: seed of the random numbers.

    Raises:
        InputError: a value out of range.
    """

    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise InputError(
                f"top_k must be 0 or more and top_p above 0 and at most 1, not {self.top_k} and "
                f"{self.top_p}"
            )


class NotFiniteError(FloatingPointError):
    """The logits of a model are not finite, so it gives no answer.

    Args:
        tokens: number of tokens after which the logits are not finite.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the model's logits are NaN or infinite after {tokens} tokens")
        self.tokens = tokens

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return NotFiniteError, (self.tokens,)


def largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the id of the largest logit, and whether the logits are finite: (..., V) -> (...).

    A NaN counts as the largest number, and ties go to the smallest id.
    """
    ids = logits.argmax(-1)
    return ids, is_finite(logits, ids)


def is_finite(logits: Tensor, ids: Tensor) -> Tensor:
    """Return whether the logits of chosen ids are finite: (..., V), (...) -> (...)."""
    return logits.gather(-1, ids[..., None])[..., 0].isfinite()


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    end: int,
    sampling: Sampling | None = None,
) -> list[list[int]]:
    """Continue each prompt until the end token or the limit.

    Args:
        model: model in evaluation mode.
        prompts: token ids of each prompt, at least one.
        max_new_tokens: maximum number of new tokens per prompt. Encodings that need the length of
            the finished sequence get the length of the prompt plus this limit.
        end: id that ends an answer; it is not returned. -1: none.
        sampling: sampling options; None: greedy decoding, where ties go to the smallest id.

    Returns:
        The new ids of each prompt.

    Raises:
        InputError: the model is in training mode, or a prompt is empty, too long for the encoding,
            or does not consist of token ids.
        NotFiniteError: logits are not finite.
    """
    check_evaluation(model.training, "generate needs")
    vocabulary = model.lm_head.out_features
    prompts = [_token_ids(prompt, vocabulary) for prompt in prompts]
    if end != -1:
        check_ids([end], vocabulary, "end")
    if max_new_tokens < 0:
        raise InputError(f"max_new_tokens must not be negative, but is {max_new_tokens}")
    if not all(prompts):
        raise InputError("an empty prompt has no last token to continue from: begin it with BOS")
    if not prompts or not max_new_tokens:
        return [[] for _ in prompts]
    if not model.encoding.prefix_consistent:
        choose = _chooser(sampling, model)
        return _generate_without_cache(model, prompts, max_new_tokens, end, choose)

    def of_rows(rows: slice) -> list[list[int]]:
        choose = _chooser(sampling, model)  # a second attempt draws the same numbers
        return _generate_with_cache(model, prompts[rows], max_new_tokens, end, choose)

    parts = retry_in_halves(of_rows, len(prompts))
    return [answer for part in parts for answer in part]


def _token_ids(tokens: Sequence[int], vocabulary: int) -> list[int]:
    """Return a list, a tensor or an array of token ids as a list.

    Raises:
        InputError: an element is not an id of the vocabulary.
    """
    listed = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise InputError("prompts and continuations must be lists of token ids")
    ids = [token.item() if hasattr(token, "item") else token for token in listed]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise InputError("prompts and continuations consist of token ids, which are whole numbers")
    check_ids(ids, vocabulary, "a prompt or continuation")
    return ids


@torch.inference_mode()
def log_likelihoods(
    model: LanguageModel, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[float]:
    """Return the log-probability in nats of each continuation, summed over its tokens.

    Raises:
        InputError: the model is in training mode, or the prompt is empty, or does not consist of
            token ids, or a continuation does not.
        NotFiniteError: a log-probability is NaN.
    """
    check_evaluation(model.training, "log_likelihoods needs")
    vocabulary = model.lm_head.out_features
    prompt = _token_ids(prompt, vocabulary)
    continuations = [_token_ids(ids, vocabulary) for ids in continuations]
    if not prompt:
        raise InputError("an empty prompt predicts nothing: begin it with BOS")
    if not continuations:
        return []
    if not model.encoding.prefix_consistent and len(continuations) > 1:  # without padding
        return [log_likelihoods(model, prompt, [ids])[0] for ids in continuations]
    tokens = _pad([[*prompt, *ids] for ids in continuations])  # (B, T + 1)
    targets = torch.full((len(tokens), tokens.shape[1] - 1), IGNORE)  # (B, T)
    for row, continuation in enumerate(continuations):
        end = len(prompt) + len(continuation)
        targets[row, len(prompt) - 1 : end - 1] = tokens[row, len(prompt) : end]
    device = model.lm_head.weight.device
    final_lengths = torch.tensor([len(prompt) + len(ids) for ids in continuations])
    losses = model.token_losses(
        tokens[:, :-1].to(device), targets.to(device), final_lengths=final_lengths
    )
    wrong = losses.isnan().any(0).nonzero()
    if len(wrong):
        raise NotFiniteError(int(wrong[0]) + 1)
    nats: list[float] = (-losses.double().sum(1)).tolist()
    return nats


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return token ids as a tensor, padded with zeros on the right, (B, T)."""
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)  # (B, T)
    for padded, row in zip(tokens, rows, strict=True):
        padded[: len(row)] = torch.tensor(row)
    return tokens


def _generate_with_cache(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    limit: int,
    end: int,
    choose: Callable[[Tensor], Tensor],
) -> list[list[int]]:
    """Continue prompts of any lengths, one token per step, with a KV cache."""
    device = model.lm_head.weight.device
    check_every = CHECK_END_EVERY.get(device.type, 1)
    lengths = torch.tensor([len(prompt) for prompt in prompts])  # (B,)
    tokens = _pad(prompts).to(device)  # (B, T)
    capacity = tokens.shape[1] + limit
    cache = Cache(len(prompts), capacity, device, final_lengths=lengths + limit)
    lengths = lengths.to(device)
    hidden = model.hidden(tokens, cache)  # (B, T, C)
    cache.truncate(lengths)
    last = hidden[torch.arange(len(prompts), device=device), lengths - 1]  # (B, C)
    logits = model.logits(last)  # (B, vocab_size)
    answers: list[Tensor] = []  # for each step, (B,)
    finite: list[Tensor] = []  # for each step, (B,)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    while True:
        new = choose(logits)  # (B,)
        usable = is_finite(logits, new) | done  # (B,)
        finite.append(usable)
        new = new.masked_fill(done | ~usable, end)
        answers.append(new)
        done |= new == end
        if len(answers) == limit:
            break
        if len(answers) % check_every == 0 and bool(done.all()):
            break
        logits = model(new[:, None], cache)[:, -1]
    wrong = (~torch.stack(finite)).nonzero()  # step and row of each non-finite logit
    if len(wrong):
        step, row = wrong[0].tolist()
        raise NotFiniteError(int(lengths[row]) + step)
    return [_before_end(row, end) for row in torch.stack(answers, dim=1).tolist()]


def _generate_without_cache(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    limit: int,
    end: int,
    choose: Callable[[Tensor], Tensor],
) -> list[list[int]]:
    """Continue prompts with a full forward per token, because outputs depend on the length.

    Only prompts of equal length share a batch, so that no length depends on other prompts.
    """
    device = model.lm_head.weight.device
    answers: dict[int, list[int]] = {}
    for length in dict.fromkeys(map(len, prompts)):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        tokens = torch.tensor([list(prompts[row]) for row in rows], device=device)
        done = torch.zeros(len(rows), dtype=torch.bool, device=device)
        final_lengths = torch.full((len(rows),), length + limit)
        while tokens.shape[1] < length + limit and not bool(done.all()):
            hidden = model.hidden(tokens, final_lengths=final_lengths)  # (B, T, C)
            logits = model.logits(hidden[:, -1])  # (B, vocab_size)
            new = choose(logits)  # (B,)
            if not bool((is_finite(logits, new) | done).all()):
                raise NotFiniteError(tokens.shape[1])
            new = new.masked_fill(done, end)
            done |= new == end
            tokens = torch.cat([tokens, new[:, None]], dim=1)
        for row, ids in zip(rows, tokens[:, length:].tolist(), strict=True):
            answers[row] = _before_end(ids, end)
    return [answers[row] for row in range(len(prompts))]


def _before_end(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids


def _chooser(sampling: Sampling | None, model: LanguageModel) -> Callable[[Tensor], Tensor]:
    if sampling is None:
        return lambda logits: logits.argmax(-1)
    generator = torch.Generator(model.lm_head.weight.device).manual_seed(sampling.seed)

    def draw(logits: Tensor) -> Tensor:
        best, finite = largest(logits)  # (B,) each
        logits = logits.where(finite[:, None], 0.0)
        probabilities, ids = logits.float().softmax(-1).sort(-1, descending=True)
        if sampling.top_k:
            probabilities[:, sampling.top_k :] = 0
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= sampling.top_p, 0)
        drawn = torch.multinomial(probabilities, 1, generator=generator)
        return ids.gather(-1, drawn)[:, 0].where(finite, best)

    return draw
