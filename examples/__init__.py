"""Small programs that show how to use single parts of Kvorum."""
