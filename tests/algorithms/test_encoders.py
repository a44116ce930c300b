"""PPO and SAC with encoders of feature groups: they learn, one encoder is shared as said, and files keep all of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.algorithms.critic import load_critic, save_critic
from ludus.algorithms.replay import Drawn
from ludus.envs.native.targets import NearestTarget
from ludus.networks.encoders import LateFusion, LatentQuery, TokenMLP
from ludus.networks.soft_actor_critic import ENCODER, one_critic, soft_networks
from ludus.types import Spec

TINY = {
    "mlp": TokenMLP((8,)),
    "lq": LatentQuery(depth=1, num_latents=2, model_dim=8, num_heads=2, feedforward_dim=8, rezero=False),
    "wayformer": LateFusion(depth=1, num_latents=2, model_dim=8, num_heads=2, feedforward_dim=8, rezero=False),
}
NETWORKS = {"mlp": ludus.MLP, "gru": ludus.GRU}
ENV = NearestTarget(targets=3)


def network_of(name: str, encoder: str, share: bool | None):
    return NETWORKS[name](hidden_sizes=(8,), encoder=TINY[encoder], share_encoder=share)


def algorithm_of(name: str, network) -> ludus.PPO | ludus.SAC:
    if name == "ppo":
        return ludus.PPO(
            batch_size=32, minibatch_size=16, epochs_per_update=1, normalize_observations=True, network=network
        )
    return ludus.SAC(
        unroll_length=8, learning_starts=8, batch_size=16, segment_length=4, burn_in=2, replay_size=256,
        updates_per_step=0.125, normalize_observations=True, network=network,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.requirement("S2.26")
@pytest.mark.parametrize(
    ("algorithm", "network", "encoder", "share"),
    [
        ("ppo", "mlp", "mlp", None), ("ppo", "gru", "lq", None),
        ("sac", "mlp", "lq", True), ("sac", "gru", "mlp", True),
    ],
)  # fmt: skip
def test_an_encoder_is_trained_and_kept_in_files(tmp_path, algorithm, network, encoder, share):
    made = algorithm_of(algorithm, network_of(network, encoder, share))
    env = ludus.make_env("NearestTarget-v1", 4, targets=3, observation="structured" if encoder == "lq" else "flat")
    settings = ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False, record_behaviour=False)
    trainer = ludus.Trainer(made, env, settings, run_dir=tmp_path / "run")
    before = jax.device_get(trainer.critic.state)
    trainer.train(total_steps=64)
    critic = trainer.critic.state
    owners = [name.partition("/")[0] for name in critic.network.names]
    expected = {"encoder"} if share or algorithm == "sac" else {"actor_encoder", "critic_encoder"}
    assert {name for name in owners if "encoder" in name} == expected
    changes = zip(owners, before.parameters, critic.parameters, strict=True)
    assert all(np.isfinite(b).all() and not np.array_equal(a, b) for name, a, b in changes if "encoder" in name)
    policy = ludus.load_policy(tmp_path / "run")
    seen = env.env.reset(jax.random.key(7))[1]
    np.testing.assert_array_equal(policy(seen), trainer.policy(seen))
    save_critic(trainer.critic, tmp_path / "critic.safetensors")
    again = load_critic(tmp_path / "critic.safetensors").state.parameters
    assert all(np.array_equal(a, b) for a, b in zip(again, critic.parameters, strict=True))


def sac_parts(share: bool):
    sac = ludus.SAC(network=network_of("mlp", "lq", share), tau=0.25, learning_rate=0.01)
    spec = Spec(ENV.observation_space, ENV.action_space, 1)
    return sac, soft_networks(sac.network, spec), spec


def encoder_in(network, leaves) -> list[np.ndarray]:
    return [np.asarray(x) for name, x in zip(network.names, leaves, strict=True) if name.startswith(ENCODER)]


@pytest.mark.slow
@pytest.mark.requirement("S2.26")
def test_latent_queries_learn_which_token_matters(tmp_path):
    """Pointing nowhere returns -0.42, and a plain perceptron -0.27 after as many steps; -0.05 is what it reached."""
    encoder = LatentQuery(depth=1, num_latents=4, model_dim=32, feedforward_dim=64)
    ppo = ludus.PPO(
        batch_size=4096, minibatch_size=256, epochs_per_update=4, learning_rate=2e-3, gamma=0.0, entropy_coef=0.0,
        network=ludus.MLP(encoder=encoder),
    )  # fmt: skip
    env = ludus.make_env("NearestTarget-v1", 256, targets=4)
    settings = ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False)
    trainer = ludus.Trainer(ppo, env, settings, run_dir=tmp_path / "run")
    trainer.train(total_steps=65_536)
    assert trainer.evaluate(1000).returns.mean() > -0.12


@pytest.mark.slow
@pytest.mark.requirement("S2.26")
def test_the_critics_train_an_encoder_that_they_share_with_the_actor():
    sac, networks, spec = sac_parts(share=True)
    state = sac.init(jax.random.key(1), spec)
    seen = jax.vmap(ENV.reset)(jax.random.split(jax.random.key(2), 16))[1]
    ones = jnp.ones(16)
    drawn = Drawn(seen, jnp.zeros((16, 2)), -ones, ones, seen, ones)
    before, noise = state.learner, jax.random.normal(jax.random.key(3), (2, 16, 2))
    after, _, gradient = jax.jit(lambda: sac._gradient_step(before, drawn, noise, (), networks))()
    old, new, targets = (
        encoder_in(networks.critic, x)
        for x in (before.parameters.critics, after.parameters.critics, after.target_critics)
    )
    assert len(old) > 10 and [x.shape for x in old] == [
        x.shape for x in encoder_in(networks.actor, before.parameters.actor)
    ]
    assert all(not np.array_equal(a, b) for a, b in zip(old, new, strict=True)), "the critics' loss moves it"
    for a, b, target in zip(old, new, targets, strict=True):
        np.testing.assert_allclose(target, a + 0.25 * (b - a), rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(encoder_in(networks.actor, after.parameters.actor), new, strict=True):
        np.testing.assert_array_equal(ours, theirs, "the actor sees by the critics' encoder")
    assert all(not slope.any() for slope in encoder_in(networks.actor, gradient.actor)), "its loss moves none of it"
    heads = [x for name, x in zip(networks.critic.names, after.parameters.critics, strict=True) if "torso" in name]
    assert all(x.shape[0] == 2 for x in heads)
    first, second = (one_critic(networks.critic, after.parameters.critics, i) for i in range(2))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
def test_a_policy_that_is_taken_over_brings_the_encoder_with_it():
    sac, networks, spec = sac_parts(share=True)
    state, other = sac.init(jax.random.key(1), spec), sac.init(jax.random.key(2), spec)
    taken = sac.with_policy(state, sac.policy(other))
    wanted = encoder_in(networks.actor, other.learner.parameters.actor)
    learner = taken.learner
    for critics in (learner.parameters.critics, learner.target_critics):
        assert all(np.array_equal(a, b) for a, b in zip(encoder_in(networks.critic, critics), wanted, strict=True))
    taken = sac.with_critic(state, sac.critic(other))
    got = encoder_in(networks.actor, taken.learner.parameters.actor)
    assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_without_sharing_each_critic_has_an_encoder_of_its_own():
    _, networks, _ = sac_parts(share=False)
    one = networks.critic.initialize(jax.random.key(0))
    assert all(x.shape == (2, *leaf.shape) for x, leaf in zip(networks.stacked([one, one]), one, strict=True))


def test_one_memory_has_one_encoder():
    with pytest.raises(ludus.LudusError, match=r"network\.share_encoder=false"):
        ludus.GRU(shared=True, share_encoder=False)


def test_an_encoder_by_name_alone_is_refused():
    with pytest.raises(ludus.LudusError, match=r"algorithm\.network\.encoder='lq': must be an encoder"):
        ludus.MLP(encoder="lq")


def test_ppo_names_an_observation_without_groups(tmp_path):
    env = ludus.make_env("CartPole-v1", 4)
    with pytest.raises(
        ludus.LudusError, match=r"algorithm/network/encoder=lq: the observation .* has no feature groups"
    ):
        ludus.Trainer(ludus.PPO(network=ludus.MLP(encoder=TINY["lq"])), env, run_dir=tmp_path / "run").train(64)
