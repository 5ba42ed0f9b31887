"""Results to text, JSON and HTML; no numerics."""
