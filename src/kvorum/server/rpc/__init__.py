"""The v3 services: check a request, hand it to the member, shape the reply."""
