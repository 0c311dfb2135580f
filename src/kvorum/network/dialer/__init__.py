"""Requests to other members, as events: connections are made and kept here."""
