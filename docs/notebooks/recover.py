# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Notebook: from a black box to its parameters
#
# Run it with `jupytext --to ipynb docs/notebooks/recover.py` and any Jupyter; the suite executes it as it stands.

# %%
import numpy as np

import unsoftmax as us

target = us.open("demo:attention,width=10,rank=3,seed=7")
us.plan("demo:attention,width=10,rank=3,seed=7", rank=3, heads=1)

# %% [markdown]
# The bill stands above; now it is paid. The target shows nothing but answers.

# %%
found = us.recover(target)
assert found.status is us.Status.EXACT
found

# %% [markdown]
# The rank was found on the way. Singular values beyond it are rounding:

# %%
values = np.linalg.svd(found.model.W[0], compute_uv=False)
assert found.facts["rank"] == 3
assert values[3] < 1e-10 * values[0]
values

# %% [markdown]
# A proof that anybody can repeat: fresh sequences, answered by target and model.

# %%
X = np.random.default_rng().normal(size=(200, 9, 10))
deviation = np.abs(target(X) - found.model(X)).max()
assert deviation < 1e-10
deviation
