"""A Keras model with dropout in a loop around train_on_batch; the backend is that of KERAS_BACKEND in the options."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

options = json.loads(sys.argv[2])
os.environ["KERAS_BACKEND"] = options["backend"]

import keras  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import numpy as np  # noqa: E402

from holdfast import training  # noqa: E402
from holdfast.training.adapters.keras import KerasState  # noqa: E402

if options["backend"] == "torch":
    import torch

    torch.set_num_threads(1)
x = np.random.default_rng(1).normal(size=(38, 8)).astype("float32")
y = x[:, :1] * 2 + 1
with training.run(sys.argv[1], every=options.get("every"), seed=3) as run:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 5, 0.7)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse", metrics=["mae"])
    run.track(model=KerasState(model))
    batches = run.batches(training.BatchSampler(len(x), 4, seed=3))
    for step in run.steps(options["steps"]):
        model.reset_metrics()
        rows = next(batches)
        logs = model.train_on_batch(x[rows], y[rows], return_dict=True)
        run.log(loss=float(logs["loss"]))
        print("step", step + 1, flush=True)
        while step + 1 == options.get("halt") and not run.stop_requested:
            time.sleep(0.001)  # until the signal that is on its way is here
digest = hashlib.sha256()
for variable in [*model.variables, *model.optimizer.variables]:
    digest.update(np.asarray(variable.numpy()).tobytes())
print("done", json.dumps({"digest": digest.hexdigest(), "loss": repr(float(logs["loss"]))}), flush=True)
