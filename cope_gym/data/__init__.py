"""Episodes and tasks as data sets: experts, imports, and the way to and from the Hub."""
