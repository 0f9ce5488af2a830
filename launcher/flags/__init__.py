"""The command line of `elastic-launch`: its own flags, and those of the launchers that it takes the place of.

One module for each origin: `add_flags` declares its flags, `said` gives what they, and their variables, mean in this
launcher's own words. `asking` looks at the words alone.
"""
