"""Programs that make backups in a run: real code of `kvorum.backup` on virtual time, and checks."""
