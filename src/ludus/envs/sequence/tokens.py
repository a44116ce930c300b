"""Token tasks: read a prompt symbol by symbol, then write the answer symbol by symbol; each right one is rewarded.

An answer can be checked, so the reward needs no judge: it is the length of the answer's correct prefix as a share of
the whole, 1 / n for each of n symbols, and the first wrong symbol ends the episode. The best return is 1. Whoever
guesses soon guesses wrong: with one chance in k each time, the mean return is below 1 / (n (k - 1)).

One number is observed at a time, so a policy must remember the prompt: symbols of the prompt are 0 .. k - 1, what was
written last is k .. 2k - 1, then come a blank and the sign to begin. While the prompt is shown nothing can be
written: the action mask allows 0 alone.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.base import Environment
from ludus.envs.sequence.task import check_count
from ludus.spaces import Discrete
from ludus.types import IS_SUCCESS, LudusError, Step


class Exercise(NamedTuple):
    """A prompt and its answer."""

    prompt: jax.Array
    """What is shown, `[P]`: symbols, and k for a blank."""
    answer: jax.Array
    """What is to be written `[A]`; entries after its length mean nothing."""
    length: jax.Array


class Writing(NamedTuple):
    """The state of an episode."""

    exercise: Exercise
    steps: jax.Array
    shown: jax.Array
    """What is observed now."""


@dataclass(frozen=True)
class TokenTask(Environment):
    """The base of token tasks: a subclass sets `num_symbols` and `prompt_length`, and draws exercises."""

    return_threshold = 0.95
    num_symbols: ClassVar[int]
    prompt_length: ClassVar[int]

    def exercise(self, key: jax.Array) -> Exercise:
        """Draw a prompt and its answer."""
        raise NotImplementedError

    def reset(self, key: jax.Array) -> tuple[Writing, jax.Array]:
        """Show the first symbol of a prompt."""
        exercise = self.exercise(key)
        state = Writing(exercise, jnp.int32(0), self._shown(exercise, jnp.int32(0), jnp.int32(0)))
        return state, state.shown

    def step(self, state: Writing, action: jax.Array, key: jax.Array) -> tuple[Writing, Step]:
        """Show the next symbol of the prompt, or judge what was written."""
        exercise, place = state.exercise, state.steps - self.prompt_length
        is_writing = place >= 0
        is_right = action == exercise.answer[jnp.maximum(place, 0)]
        is_last = place + 1 == exercise.length
        reward = jnp.where(is_writing & is_right, 1.0 / exercise.length, 0.0)
        steps = state.steps + 1
        after = Writing(exercise, steps, self._shown(exercise, steps, action))
        info = {IS_SUCCESS: (is_writing & is_right & is_last).astype(jnp.float32)}
        return after, Step(after.shown, reward, is_writing & (~is_right | is_last), False, info)

    def action_mask(self, state: Writing) -> jax.Array:
        """Allow only 0 while the prompt is shown."""
        return (state.steps >= self.prompt_length) | (jnp.arange(self.num_symbols) == 0)

    def _shown(self, exercise: Exercise, steps: jax.Array, action: jax.Array) -> jax.Array:
        """Return what is observed: a symbol or a blank of the prompt, the sign to begin, or what was written last."""
        symbol = exercise.prompt[jnp.minimum(steps, self.prompt_length - 1)]
        symbol = jnp.where(symbol == self.num_symbols, 2 * self.num_symbols, symbol)  # a blank
        written = jnp.where(steps == self.prompt_length, 2 * self.num_symbols + 1, self.num_symbols + action)
        return jnp.where(steps < self.prompt_length, symbol, written).astype(jnp.int32)

    def _set_up(self, num_symbols: int, prompt_length: int) -> None:
        object.__setattr__(self, "num_symbols", num_symbols)
        object.__setattr__(self, "prompt_length", prompt_length)
        object.__setattr__(self, "observation_space", Discrete(2 * num_symbols + 2))
        object.__setattr__(self, "action_space", Discrete(num_symbols))


@dataclass(frozen=True)
class Sorting(TokenTask):
    """Write `length` different symbols out of `symbols` in ascending order."""

    length: int = 8
    symbols: int = 16

    def __post_init__(self) -> None:
        """Refuse more places than symbols."""
        _check(self, "length", "symbols")
        if self.length > self.symbols:
            raise LudusError(f"env_options.length={self.length}: must be at most env_options.symbols={self.symbols}")
        self._set_up(self.symbols, self.length)

    def exercise(self, key: jax.Array) -> Exercise:
        """Draw symbols without putting any back."""
        prompt = jnp.argsort(jax.random.uniform(key, (self.symbols,)))[: self.length].astype(jnp.int32)
        return Exercise(prompt, jnp.sort(prompt), jnp.int32(self.length))


@dataclass(frozen=True)
class Brackets(TokenTask):
    """Close what is open: half of `length` brackets of several `kinds` are shown, the closing ones are to be written.

    Symbols below `kinds` open, the others close. A bracket of the prompt opens with probability 0.7 or, where nothing
    is open, always; at least two are open at its end. The answer is as long as it takes, at most half of `length`.
    """

    length: int = 20
    kinds: int = 4

    def __post_init__(self) -> None:
        """Refuse what has no halves."""
        _check(self, "length", "kinds")
        if self.length % 4:
            raise LudusError(f"env_options.length={self.length}: must be a multiple of 4")
        self._set_up(2 * self.kinds, self.length // 2)

    def exercise(self, key: jax.Array) -> Exercise:
        """Draw brackets one after the other, with a stack of those that are open."""
        shown = self.length // 2
        opens, kinds = jax.random.split(key)
        opens = jax.random.bernoulli(opens, 0.7, (shown,))
        kinds = jax.random.randint(kinds, (shown,), 0, self.kinds)

        def step(state: tuple[jax.Array, jax.Array], drawn: tuple[jax.Array, ...]) -> tuple[tuple, jax.Array]:
            stack, depth = state
            opening, kind, is_last = drawn
            opening = opening | (depth == 0) | (is_last & (depth == 1))
            symbol = jnp.where(opening, kind, self.kinds + stack[depth - 1])
            stack = jnp.where(opening & (jnp.arange(shown) == depth), kind, stack)
            return (stack, depth + jnp.where(opening, 1, -1)), symbol

        start = jnp.zeros(shown, jnp.int32), jnp.int32(0)
        is_last = jnp.arange(shown) == shown - 1
        (stack, depth), prompt = jax.lax.scan(step, start, (opens, kinds, is_last))
        answer = self.kinds + stack[jnp.maximum(depth - 1 - jnp.arange(shown), 0)]
        return Exercise(prompt, answer, depth)


@dataclass(frozen=True)
class Addition(TokenTask):
    """Add two numbers of so many `digits`. They are shown as people write them, with a blank for the plus.

    The sum, with one digit more than they have, is written from its last digit on, as people add.
    """

    digits: int = 2

    def __post_init__(self) -> None:
        """Refuse numbers too long for 32 bits."""
        _check(self, "digits")
        if self.digits > 8:
            raise LudusError(f"env_options.digits={self.digits}: must be at most 8")
        self._set_up(10, 2 * self.digits + 1)

    def exercise(self, key: jax.Array) -> Exercise:
        """Draw both numbers."""
        powers = 10 ** jnp.arange(self.digits + 1)
        summands = jax.random.randint(key, (2, self.digits), 0, 10)
        total = (summands * powers[: self.digits][::-1]).sum()
        blank = jnp.full(1, self.num_symbols, jnp.int32)
        prompt = jnp.concatenate([summands[0], blank, summands[1]])
        return Exercise(prompt, (total // powers % 10).astype(jnp.int32), jnp.int32(self.digits + 1))


@dataclass(frozen=True)
class Copy(TokenTask):
    """Write `length` symbols, each one of so many, as they were shown `delay` blanks before."""

    length: int = 5
    symbols: int = 8
    delay: int = 20

    def __post_init__(self) -> None:
        """Refuse counts that are none; there may be no delay."""
        _check(self, "length", "symbols")
        if self.delay != 0:
            _check(self, "delay")
        self._set_up(self.symbols, self.length + self.delay)

    def exercise(self, key: jax.Array) -> Exercise:
        """Draw symbols."""
        answer = jax.random.randint(key, (self.length,), 0, self.symbols)
        blanks = jnp.full(self.delay, self.num_symbols, jnp.int32)
        return Exercise(jnp.concatenate([answer, blanks]), answer, jnp.int32(self.length))


def _check(task: TokenTask, *names: str) -> None:
    for name in names:
        check_count(name, getattr(task, name))
