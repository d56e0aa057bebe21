"""The state of the machine: health, status, settings, named caches."""
