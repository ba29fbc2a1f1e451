"""Explain a label by integrated gradients (Sundararajan et al., 2017): captum on a saved model.

The baseline has the mask token for every subword. The scores of the subwords of a word are added.
pip install captum              # no dependency of finetune
python examples/integrated_gradients.py RUN TEXT [SECOND TEXT]      # a run of `classify` or `nli`
"""

import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def load(run: str):
    """Load the best model of a run, and its tokenizer, with plain transformers."""
    model = AutoModelForSequenceClassification.from_pretrained(f"{run}/best").eval()
    return model, AutoTokenizer.from_pretrained(f"{run}/best")


def inputs_of(tokenizer, texts: list[str]):
    """Tokenize a text or a pair, and make the baseline; also the word of each token, or None."""
    encoded = tokenizer(*([text] for text in texts), return_tensors="pt", truncation=True)
    numbers = zip(encoded.sequence_ids(), encoded.word_ids(), strict=True)
    words = [None if text is None else (text, word) for text, word in numbers]
    masked = torch.tensor([word is not None for word in words])
    baseline = encoded["input_ids"].masked_fill(masked, tokenizer.mask_token_id)
    return encoded, baseline, words


def word_scores(encoded, words: list, scores: list[float]) -> list[tuple[str, float]]:
    """Add up the scores of the subwords of each word."""
    texts, totals = dict[tuple, str](), dict[tuple, float]()
    for token, word, score in zip(encoded.tokens(), words, scores, strict=True):
        if word is not None:
            texts[word] = texts.get(word, "") + token.removeprefix("##").removeprefix("Ġ")
            totals[word] = totals.get(word, 0.0) + score
    return [(texts[word], totals[word]) for word in texts]


def main() -> None:
    """Print the score of each word for the predicted label."""
    from captum.attr import LayerIntegratedGradients

    run, *texts = sys.argv[1:]
    model, tokenizer = load(run)
    encoded, baseline, words = inputs_of(tokenizer, texts)
    label = int(model(**encoded).logits.argmax())

    def score(ids: torch.Tensor) -> torch.Tensor:
        return model(**{**encoded, "input_ids": ids}).logits.log_softmax(-1)[:, label]

    gradients = LayerIntegratedGradients(score, model.get_input_embeddings())
    found = gradients.attribute(encoded["input_ids"], baseline, internal_batch_size=1)  # one mask
    print(model.config.id2label[label])
    for word, value in word_scores(encoded, words, found.sum(-1)[0].tolist()):
        print(f"{value:+.3f} {word}")


if __name__ == "__main__":
    main()
