"""Workers of which one leads and writes invoices, each number once: an example for simulations."""
