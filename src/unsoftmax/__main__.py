"""``python -m unsoftmax``."""

from unsoftmax.cli import main

main()
