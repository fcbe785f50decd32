//! Credits: what each endpoint is owed, and how it survives a change.

use crate::{policy::View, util::random::splitmix64};

/// One eligible endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// Its index among the members.
    pub(super) index: u32,
    /// Its weight, divided by what all weights have in common.
    pub(super) weight: u64,
    /// What it is owed at the start, in units of 1/(total × [`FINE`]) picks.
    pub(super) credit: i128,
}

/// Credits are kept finer than the weights, so that carrying them from one total to another
/// loses nothing that counts: sums of weights stay below 2^64 × 2^32 here, far from the range of the type.
pub(super) const FINE: i128 = 1 << 32;

impl Entry {
    /// Returns the eligible endpoints in order, without credit.
    pub(super) fn of(view: &View<'_>) -> Vec<Self> {
        let entry = |(index, id, weight)| Self { id, index, weight, credit: 0 };
        let mut entries: Vec<_> = view.shares().map(entry).collect();
        let common = entries.iter().fold(0, |common, entry| gcd(common, entry.weight));
        if common > 1 {
            entries.iter_mut().for_each(|entry| entry.weight /= common);
        }
        entries
    }
}

/// Returns the sum of the weights: the number of picks in a cycle.
pub(super) fn total(entries: &[Entry]) -> i128 {
    entries.iter().map(|entry| i128::from(entry.weight)).sum()
}

/// Gives the endpoints the credits that they had in a former set, by id.
///
/// Both are in rising order of ids. Credits are carried in units of picks. What those who
/// are gone had is spread by weight.
pub(super) fn carry(former: &[Entry], former_total: i128, entries: &mut [Entry]) {
    let total = total(entries);
    let same = total == former_total && former.len() == entries.len();
    let scale = total as f64 / former_total as f64;
    let mut former = former.iter().peekable();
    let mut gone = 0_i128;
    for entry in entries.iter_mut() {
        while let Some(leaver) = former.next_if(|leaver| leaver.id < entry.id) {
            gone += leaver.credit;
        }
        if let Some(former) = former.next_if(|former| former.id == entry.id) {
            entry.credit = former.credit;
        }
    }
    gone += former.map(|leaver| leaver.credit).sum::<i128>();
    if same && gone == 0 {
        return;
    }
    let gone = gone as f64 * scale / total as f64;
    for entry in entries.iter_mut() {
        entry.credit = whole(float(entry.credit) * scale + gone * entry.weight as f64);
    }
    // Credits sum to nothing, also after rounding.
    let rest: i128 = entries.iter().map(|entry| entry.credit).sum();
    if let Some(first) = entries.first_mut() {
        first.credit -= rest;
    }
}

/// Converts by way of 64 bits, which is much faster, where they hold the number.
fn float(number: i128) -> f64 {
    i64::try_from(number).map_or_else(|_| number as f64, |number| number as f64)
}

/// Converts back, dropping the fraction: a 2^32nd part of a pick over the total.
fn whole(number: f64) -> i128 {
    const SAFE: f64 = (1_u64 << 62) as f64;
    if number.abs() < SAFE { i128::from(number as i64) } else { number as i128 }
}

/// Gives the endpoints of a fresh balancer credits at even distances, in random order.
///
/// They lie between -1/2 and 1/2 picks and sum to nothing, so the bounds hold from there on.
/// Being apart they have no ties: if many balancers started at some place of the sequence
/// that has no credit at first, all that have not had their turn would be tied, and one
/// whose weight is raised would be next everywhere.
pub(super) fn scatter(entries: &mut [Entry], seed: u64) {
    let n = entries.len() as i128;
    let all = total(entries) * FINE;
    let mut order: Vec<_> = (0..entries.len()).collect();
    order.sort_by_cached_key(|&place| splitmix64(seed ^ splitmix64(place as u64)));
    let mut rest = 0;
    for (rank, place) in (0_i128..).zip(order) {
        let credit = (2 * rank + 1 - n) * all / (2 * n);
        entries[place].credit = credit;
        rest += credit;
    }
    if let Some(first) = entries.first_mut() {
        first.credit -= rest;
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    if a == 1 {
        return 1;
    }
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, weight: u64, credit: i128) -> Entry {
        Entry { id, index: 0, weight, credit: credit * FINE }
    }

    fn carried(former: &[Entry], mut entries: Vec<Entry>) -> Vec<f64> {
        let all = total(&entries) as f64;
        carry(former, total(former), &mut entries);
        assert_eq!(entries.iter().map(|entry| entry.credit).sum::<i128>(), 0);
        entries.iter().map(|entry| entry.credit as f64 / FINE as f64 / all).collect()
    }

    #[test]
    fn credits_are_carried_in_picks() {
        let former = [entry(1, 1, 3), entry(2, 4, -3)];
        let picks = carried(&former, vec![entry(1, 10, 0), entry(2, 5, 0)]);
        assert!((picks[0] - 0.6).abs() < 1e-9, "{picks:?}");
    }

    #[test]
    fn scattered_credits_are_apart_and_sum_to_nothing() {
        for n in 1..50 {
            let mut entries: Vec<_> = (0..n).map(|id| entry(id, 1 + id % 7, 0)).collect();
            scatter(&mut entries, 5);
            assert_eq!(entries.iter().map(|entry| entry.credit).sum::<i128>(), 0);
            let half = total(&entries) * FINE / 2;
            assert!(entries.iter().all(|entry| entry.credit.abs() <= half));
            entries.sort_by_key(|entry| entry.credit);
            assert!(entries.windows(2).all(|pair| pair[0].credit < pair[1].credit));
        }
    }

    #[test]
    fn a_leavers_credit_is_spread_by_weight_and_newcomers_have_none() {
        let former = [entry(1, 1, -2), entry(2, 1, 2), entry(3, 2, 0)];
        let picks = carried(&former, vec![entry(1, 1, 0), entry(3, 3, 0)]);
        assert!((picks[0] - (-0.5 + 0.125)).abs() < 1e-9, "{picks:?}");
        let picks =
            carried(&former, vec![entry(1, 1, 0), entry(2, 1, 0), entry(3, 2, 0), entry(4, 9, 0)]);
        assert_eq!(picks[3], 0.0);
    }
}
