"""`python -m cope_gym` is `cope`, for interpreters whose scripts folder is not on the path."""

from cope_gym.cli import main

main()
