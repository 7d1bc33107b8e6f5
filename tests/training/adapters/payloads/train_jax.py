"""Plain jax: parameters, Adam's moments and the key in one dictionary of pytrees."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any, NamedTuple

import jax  # type: ignore[import-not-found,unused-ignore]
import jax.numpy as jnp  # type: ignore[import-not-found,unused-ignore]
import numpy as np

from holdfast import training

options = json.loads(sys.argv[2])


class Moments(NamedTuple):
    mean: dict[str, Any]
    square: dict[str, Any]


def loss_of(params: Any, key: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    hidden = hidden * jax.random.bernoulli(key, 0.7, hidden.shape)
    return ((hidden @ params["v"] - y) ** 2).mean()


@jax.jit  # type: ignore[untyped-decorator,unused-ignore]
def train_step(params: Any, moments: Any, key: Any, x: Any, y: Any) -> Any:
    key, drop = jax.random.split(key)
    loss, grads = jax.value_and_grad(loss_of)(params, drop, x, y)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments.mean, grads)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, moments.square, grads)
    params = jax.tree.map(lambda p, m, s: p - 0.01 * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, Moments(mean, square), key, loss


x = np.random.default_rng(1).normal(size=(38, 8)).astype("float32")
y = x[:, :1] * 2 + 1
draw = np.random.default_rng(2)
params = {"w": jnp.asarray(draw.normal(size=(8, 16)), jnp.float32), "b": jnp.zeros(16)}
params["v"] = jnp.asarray(draw.normal(size=(16, 1)), jnp.float32)
zeros = jax.tree.map(jnp.zeros_like, params)
state = {"params": params, "moments": Moments(zeros, zeros), "half": jnp.ones(3, jnp.bfloat16)}
state["key"] = jax.random.key(3) if options["typed"] else jax.random.PRNGKey(3)
with training.run(sys.argv[1], every=options.get("every"), seed=3) as run:
    run.track(state)
    batches = run.batches(training.BatchSampler(len(x), 4, seed=3))
    for step in run.steps(options["steps"]):
        rows = next(batches)
        state["params"], state["moments"], state["key"], loss = train_step(
            state["params"], state["moments"], state["key"], x[rows], y[rows]
        )
        state["half"] = state["half"] * 1.01
        run.log(loss=float(loss))
        print("step", step + 1, flush=True)
        while step + 1 == options.get("halt") and not run.stop_requested:
            time.sleep(0.001)  # until the signal that is on its way is here
assert isinstance(state["moments"], Moments)
digest = hashlib.sha256()
for leaf in jax.tree.leaves({**state, "key": jax.random.key_data(state["key"])}):
    digest.update(np.asarray(leaf).tobytes())
print("done", json.dumps({"digest": digest.hexdigest(), "loss": repr(float(loss))}), flush=True)
