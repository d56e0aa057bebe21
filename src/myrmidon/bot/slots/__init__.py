"""Functions on a bot: slots, the processes that run functions, their code and their values."""
