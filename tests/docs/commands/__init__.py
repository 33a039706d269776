"""The commands of the documentation, run literally by test_pages.py.

A page runs in an empty directory and in an environment that has only the built wheels. A how-to begins with the files
that docs/tutorials/keras.md leaves. Each `bash` and `python` block runs in the order of the page. A block without a
language after it is the output, and must match.

Comments before a block or at the top of a page say what a reader would decide:

- `<!-- commands: after docs/tutorials/keras.md -->` the page begins with the files of this page instead
- `<!-- commands: serve digits --rest_api_port=8501 -->` a server of models/digits runs from the next block on that runs
- `<!-- commands: not run: REASON -->` the next block needs what the tests lack, such as a TPU
- `<!-- commands: page not run: REASON -->` no block of the page runs
- `<!-- commands: exits 99 -->` the last command of the next block ends with this code
- `<!-- commands: until TEXT -->` the last command of the next block keeps running; the next one starts after TEXT
- `<!-- commands: output varies -->` the output after the next block is an example
"""
