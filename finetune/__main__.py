"""``python -m finetune``: the same as the command `finetune`."""

from finetune.cli.main import main

if __name__ == "__main__":
    main()
