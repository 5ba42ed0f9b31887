"""What a target is: tests of what its answers show, one file each, and the verdict."""
