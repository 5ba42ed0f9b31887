# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Notebook: what stops an extraction?
#
# An audit in Python: defences in words, the table as data, the verdict as a value.

# %%
import unsoftmax as us

target = "demo:attention,width=5,seed=4"
audit = us.audit(target, defences=["3 decimals", "noise 0.05", "quota 12", "labels only"], budget=1200, seed=1)
audit

# %% [markdown]
# Each row is an extraction that was run, with its error against undefended answers and what the defence costs honest users:

# %%
for cell in audit.cells:
    error = "no copy" if cell.error is None else f"error {cell.error:.1e}"
    print(
        f"{cell.defence.name:<12} {cell.status:<18} {cell.queries:>5} queries  {error:<14} users pay {cell.honest_cost / audit.spread:.1e}"
    )

# %%
assert audit.conclusion.verdict.words == "EXTRACTABLE"
assert "quota 12" in audit.conclusion.stopped_by
assert "3 decimals" not in audit.conclusion.stopped_by
audit.conclusion.sentence

# %% [markdown]
# The same as a page for others, with its JSON:

# %%
audit.save("audit-report")
