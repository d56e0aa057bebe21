"""The API of TaskCluster's graph scheduler, for existing clients."""
