"""From what was said, on the command line and in variables, to the options of this run: checked once, in here."""
