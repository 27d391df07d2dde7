"""How fast: hbc beside the engines that a user could pick instead, on one machine, in one run. `python -m bench`."""
