"""What every stage stands on: the memory budget and its meter, threads, files that are there whole, locks.

Nothing here knows a stage; it imports nothing of ramlet but the errors.
"""
