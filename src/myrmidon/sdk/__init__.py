"""The client library: calls a server over HTTP. Imports no other package of Myrmidon."""
