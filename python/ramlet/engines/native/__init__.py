"""The engine without torch: the model runs in the native core, on a CPU."""
