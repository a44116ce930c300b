"""Token tasks: what is shown, what is right, and that guessing earns next to nothing."""

import functools

import jax
import numpy as np
import pytest

import ludus
from ludus.envs.sequence.tokens import Addition, Brackets, Copy, Sorting
from ludus.types import IS_SUCCESS

TASKS = {"Sorting-v1": Sorting, "Brackets-v1": Brackets, "Addition-v1": Addition, "Copy-v1": Copy}
KEYS = jax.random.split(jax.random.key(3), 8)


def expected_answer(name, prompt):
    """The answer, computed from the prompt by plain Python."""
    if name == "Sorting-v1":
        return sorted(prompt)
    if name == "Copy-v1":
        return prompt[:5]
    if name == "Addition-v1":
        first, second = (int("".join(map(str, part))) for part in (prompt[:2], prompt[3:]))
        return [int(digit) for digit in f"{first + second:03d}"][::-1]
    stack = []
    for symbol in prompt:
        if symbol >= 4:
            assert stack.pop() == symbol - 4
        else:
            stack.append(symbol)
    return [4 + kind for kind in reversed(stack)]


@functools.cache
def compiled(task):
    return jax.jit(task.reset), jax.jit(lambda *x: (task.action_mask(x[0]), task.step(*x)))


def play(task, key, write):
    """Play an episode; `write(number, right)` chooses the number-th symbol. Returns what is seen, return, length."""
    reset, step_once = compiled(task)
    state, obs = reset(key)
    seen, total, steps = [int(obs)], 0.0, 0
    answer = np.asarray(state.exercise.answer)
    while True:
        place = steps - task.prompt_length
        action = write(place, int(answer[place])) if place >= 0 else 0
        allowed, (state, step) = step_once(state, np.int32(action), key)
        assert allowed.all() if place >= 0 else allowed.sum() == 1 and allowed[0]
        total, steps = total + float(step.reward), steps + 1
        seen.append(int(step.obs))
        if step.terminated:
            return seen, total, steps, float(step.info[IS_SUCCESS])


@pytest.mark.requirement("S0.19")
@pytest.mark.parametrize("name", TASKS)
def test_the_right_answer_earns_one_and_a_wrong_symbol_ends_the_episode(name):
    task = TASKS[name]()
    k = task.num_symbols
    for key in KEYS:
        exercise = compiled(task)[0](key)[0].exercise
        prompt, length = np.asarray(exercise.prompt).tolist(), int(exercise.length)
        answer = np.asarray(exercise.answer)[:length].tolist()
        assert answer == expected_answer(name, prompt)
        seen, total, steps, success = play(task, key, lambda place, right: right)
        assert seen[: len(prompt)] == [2 * k if symbol == k else symbol for symbol in prompt]
        assert seen[len(prompt)] == 2 * k + 1
        assert seen[len(prompt) + 1 :] == [k + symbol for symbol in answer]
        assert (round(total, 5), steps, success) == (1.0, len(prompt) + length, 1.0)
    seen, total, steps, success = play(task, KEYS[0], lambda place, right: right if place < 1 else (right + 1) % k)
    length = int(compiled(task)[0](KEYS[0])[0].exercise.length)
    assert (round(total, 5), steps, success) == (round(1 / length, 5), task.prompt_length + 2, 0.0)


@pytest.mark.requirement("S0.19")
@pytest.mark.parametrize("name", TASKS)
def test_a_random_policy_earns_at_most_a_twentieth_of_the_best(name):
    task, count = TASKS[name](), 20_000
    exercises = jax.jit(jax.vmap(task.exercise))(jax.random.split(jax.random.key(1), count))
    guesses = np.random.default_rng(0).integers(0, task.num_symbols, exercises.answer.shape)
    is_right = (guesses == np.asarray(exercises.answer)).cumprod(axis=1)
    lengths = np.asarray(exercises.length)[:, None]
    returns = (is_right * (np.arange(is_right.shape[1]) < lengths)).sum(axis=1) / lengths[:, 0]
    assert 0 < returns.mean() <= 0.05, returns.mean()
    k = task.num_symbols
    closed = np.mean(sum(float(k) ** -i for i in range(1, is_right.shape[1] + 1)) / lengths[:, 0])
    np.testing.assert_allclose(returns.mean(), closed, rtol=0.1)


@pytest.mark.parametrize(("name", "options", "told"), [
    ("Sorting-v1", {"length": 9, "symbols": 8}, "env_options.length=9: must be at most env_options.symbols=8"),
    ("Brackets-v1", {"length": 10}, "env_options.length=10: must be a multiple of 4"),
    ("Addition-v1", {"digits": 9}, "env_options.digits=9: must be at most 8"),
    ("Copy-v1", {"delay": -1}, "env_options.delay=-1: must be an integer of at least 1"),
])  # fmt: skip
def test_sizes_that_cannot_be_are_one_line(name, options, told):
    with pytest.raises(ludus.LudusError, match=f"^{told}$"):
        ludus.make_env(name, **options)


@pytest.mark.slow
@pytest.mark.requirement("S0.26", "S0.28")
def test_a_token_task_is_trained_and_evaluated_from_the_command_line(run):
    words = "env=Sorting-v1 env_options.length=2 env_options.symbols=4 algorithm=ppo algorithm/network=transformer"
    sizes = "algorithm.network.model_dim=16 algorithm.network.num_layers=1 algorithm.network.context_length=4"
    batch = "num_envs=16 algorithm.batch_size=256 algorithm.minibatch_size=128 total_steps=512 run_dir=r"
    code, _, err = run("train", *words.split(), *sizes.split(), *batch.split(), "eval_episodes_final=8")
    assert code == 0, err
    code, _, err = run("evaluate", "r", "--episodes", 4)
    assert code == 0, err
