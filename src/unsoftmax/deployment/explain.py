def explained(*a, **k): return None
