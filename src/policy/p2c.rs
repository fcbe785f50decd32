//! The power of two choices: draws a few endpoints by weight and picks the best.

use super::{PickContext, cutpoints::Cutpoints};

/// How many endpoints are drawn at most. 16 is a choice: further ones hardly improve the pick.
pub(super) const MOST: usize = 16;

/// The endpoints that one pick has drawn: spans of numbers, in rising order.
#[derive(Debug)]
struct Drawn<const N: usize> {
    spans: [(u64, u64); N],
    count: usize,
    /// How many numbers none of these owns.
    left: u64,
}

impl<const N: usize> Drawn<N> {
    /// Draws one of the other endpoints, with a chance in proportion to its weight.
    fn draw(&self, weights: &Cutpoints, random: impl Fn(u64) -> u64) -> usize {
        let mut number = random(self.left);
        // Skips the numbers of those that are drawn already.
        for &(start, width) in &self.spans[..self.count] {
            if number < start {
                break;
            }
            number += width;
        }
        weights.owner(number)
    }

    /// Excludes an endpoint from further draws; fewer than N in all.
    fn exclude(&mut self, span: (u64, u64)) {
        self.left -= span.1;
        let at = self.spans[..self.count].partition_point(|&drawn| drawn < span);
        self.spans.copy_within(at..self.count, at + 1);
        self.spans[at] = span;
        self.count += 1;
    }
}

/// Draws up to N distinct endpoints and returns the place of the one with the lowest score; of equal
/// ones the first.
///
/// Each is scored once; those after the first only if `is_compared` returns true.
#[inline]
pub(super) fn best_of<const N: usize, S: PartialOrd>(
    weights: &Cutpoints,
    choices: usize,
    cx: &PickContext<'_>,
    is_compared: impl Fn(usize) -> bool,
    score: impl Fn(usize) -> S,
) -> usize {
    let mut drawn = Drawn::<N> {
        spans: [(0, 0); N],
        count: 0,
        left: weights.total(),
    };
    let mut best = drawn.draw(weights, |bound| cx.draw(0, bound));
    let choices = choices.min(N).min(weights.len());
    if choices < 2 {
        return best;
    }
    let (mut last, mut least) = (best, score(best));
    for nth in 1..choices as u64 {
        drawn.exclude(weights.span(last));
        let place = drawn.draw(weights, |bound| cx.draw(nth, bound));
        last = place;
        if !is_compared(place) {
            continue;
        }
        let score = score(place);
        if score < least {
            (best, least) = (place, score);
        }
    }
    best
}

/// Scores every endpoint and returns the place of the best; of equal ones each has a chance in
/// proportion to its weight.
pub(super) fn best_of_all<S: PartialOrd>(
    weights: &Cutpoints,
    cx: &PickContext<'_>,
    score: impl Fn(usize) -> S,
) -> usize {
    let mut best: Option<(usize, S)> = None;
    let mut tied = 0;
    for place in 0..weights.len() {
        let (score, (_, weight)) = (score(place), weights.span(place));
        let better = best.as_ref().is_none_or(|(_, least)| score < *least);
        let equal = best.as_ref().is_some_and(|(_, least)| score == *least);
        tied = if better {
            weight
        } else {
            tied + if equal { weight } else { 0 }
        };
        if better || (equal && cx.draw(1 + place as u64, tied) < weight) {
            best = Some((place, score));
        }
    }
    best.map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::policy::{context::tests::Idle, ticket::Tickets};

    #[test]
    fn b20_as_many_are_scored_as_are_drawn_and_each_once() {
        let tickets = Tickets::new(0, 7);
        for (n, choices, expected) in [(10_000, 2, 2), (10_000, 99, 16), (3, 16, 3), (1, 2, 0)] {
            let weights = Cutpoints::new((0..n).map(|i| (i, u64::from(i), 1 + u64::from(i % 7))));
            for _ in 0..1_000 {
                let (cx, scored) = (
                    PickContext::new(&[], &Idle(&[]), &tickets, 0),
                    Cell::new(Vec::new()),
                );
                let score = |place: usize| {
                    let mut places = scored.take();
                    places.push(place);
                    scored.set(places);
                    0
                };
                let best = best_of::<MOST, _>(&weights, choices, &cx, |_| true, score);
                let mut scored = scored.into_inner();
                assert!(
                    scored.is_empty() || scored[0] == best,
                    "of equal ones the first"
                );
                scored.sort_unstable();
                scored.dedup();
                assert_eq!(scored.len(), expected, "{choices} of {n}");
            }
        }
    }
}
