"""Files for people: the HTML report, the model card, the README of a run, uploads to the hub."""
