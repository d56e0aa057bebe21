"""The structs of the HTTP API: what the server's route table declares and the SDK decodes. Standard types only."""
