"""`ramlet.fit`: any torch module, trained within a memory budget by the loop of `ramlet.train`."""
