"""Workers whose leader writes invoices, each number once: an example for simulations."""
