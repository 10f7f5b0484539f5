"""The command line: thin Typer commands over `consumer` and `store`; each group in its own file."""
