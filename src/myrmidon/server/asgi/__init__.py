"""The HTTP side of the server: routes, decoding, error responses and the OpenAPI document."""
