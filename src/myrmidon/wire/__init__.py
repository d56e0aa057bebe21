"""The structs of the HTTP API: what the server's route table declares and the SDK decodes. Standard types only.

A field that is added to an answer has a default: a client may talk to a server of the previous release.
"""
