"""The command ``freescale``: a module for each subcommand, and ``main``, which finds them."""
