"""One method for each call of /api/v1; each returns the struct that the server's route table declares for it."""
