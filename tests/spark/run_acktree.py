"""What is given to spark-submit: the command line of acktree."""

from acktree.console.main import main

main()
