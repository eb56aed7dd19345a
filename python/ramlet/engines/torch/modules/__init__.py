"""Any nn.Module, trained by its own autograd within a budget: what `ramlet.fit` needs of torch.

subject.py                           the module with its loss on its device; everything else is called from here
batches.py  losses.py  pieces.py     batches of any loader, the loss and its weight, dividing a batch
search.py  guard.py  plan.py         finding a micro-batch that fits, by trial; never exceeding the budget meanwhile
checkpointing.py                     activation checkpointing of repeated blocks
trainee.py  optimizers.py            a training step; ramlet's optimizers and others
seeding.py                           random numbers by the seed and a counter
"""
