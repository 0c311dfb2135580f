"""Small programs that show how parts of Kvorum are used by themselves."""
