"""Authentication, as far as there is any: data that asks for it is recognized and refused."""
