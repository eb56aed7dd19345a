"""What every stage is built on: the memory budget and its meter, threads, atomic files, locks.

Nothing here knows a stage; of ramlet it imports only the errors.
"""
