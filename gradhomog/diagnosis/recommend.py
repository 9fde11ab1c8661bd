"""Recommendation of a diagnosis: rules on confidence intervals, each with a code and a plain sentence."""

from __future__ import annotations

from gradhomog.diagnosis.conflict_rules import conflict, harm
from gradhomog.diagnosis.input_rules import accumulated_rows, mistakes, summed_loss
from gradhomog.diagnosis.noise_rules import noise, shared_noise
from gradhomog.diagnosis.norm_rules import heavy_tails, norms_are_similar, norms_differ
from gradhomog.diagnosis.result import DiagnosisResult, Recommendation


def recommend(found: DiagnosisResult) -> tuple[Recommendation, ...]:
    """Apply all rules; the most important sentence is the first. The guide lists codes and conditions.

    Real conflict is claimed for a pair if the interval of its inner product is below zero after Bonferroni's correction
    for the number of pairs; that there is none, if the intervals of all pairs are above zero, or negligible.
    """
    if found.accumulated:
        return (accumulated_rows(),)
    if found.parallel:
        return (summed_loss(),)
    rules = (mistakes, harm, conflict, norms_differ, heavy_tails, noise, shared_noise)
    sentences = [sentence for rule in rules for sentence in rule(found)]
    codes = {sentence.code for sentence in sentences}
    if "no_conflict" in codes and not codes & {"row_norms_differ", "heavy_tails"} and norms_are_similar(found):
        sentences.append(
            Recommendation(
                "plain_mean",
                "expected gradients do not conflict, and those of different direction have similar norms: use the "
                "plain mean.",
            )
        )
    return tuple(sentences)
