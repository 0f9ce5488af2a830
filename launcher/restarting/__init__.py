"""Workers whose scripts know nothing of the job: at each change of its members their processes are started again.

The agent takes part in the job's protocol in their place, one keeper for each slot. A keeper is the member; the script's
process lives as long as one generation at most.
"""
