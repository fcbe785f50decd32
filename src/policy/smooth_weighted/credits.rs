//! Credits: what each endpoint is owed, and how it survives a change.

use crate::util::random::splitmix64;

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
    /// Returns endpoints by index, id and weight, without credit.
    pub(super) fn of(shares: impl Iterator<Item = (u32, u64, u64)>) -> Vec<Self> {
        let entry = |(index, id, weight)| Self { id, index, weight, credit: 0 };
        let mut entries: Vec<_> = shares.map(entry).collect();
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

/// What endpoints are owed at some point of a sequence.
#[derive(Debug, Clone)]
pub(super) struct Credits {
    /// In rising order of ids.
    pub(super) entries: Vec<Entry>,
    /// The sum of their weights.
    pub(super) total: i128,
    /// What endpoints that have left were ahead, up to one pick, and no newcomer has taken over:
    /// at most 0, in picks.
    pub(super) vacancy: f64,
}

impl Credits {
    /// Starts without credit.
    pub(super) fn none(entries: Vec<Entry>) -> Self {
        Self { total: total(&entries), entries, vacancy: 0.0 }
    }

    /// Gives other endpoints the credits that they have here, by id, in units of picks.
    ///
    /// What those that are gone were owed is spread by weight. What they were *ahead*, up to
    /// one pick, goes to newcomers, now or later: or those that stay would never get the pick
    /// that a heavy endpoint took before it was replaced by another.
    pub(super) fn carry(&self, mut entries: Vec<Entry>) -> Self {
        let total = total(&entries);
        let scale = total as f64 / self.total as f64;
        let mut former = self.entries.iter().peekable();
        let (mut gone, mut new_weight) = (0_i128, 0.0);
        let mut is_new = vec![false; entries.len()];
        for (entry, is_new) in entries.iter_mut().zip(&mut is_new) {
            while let Some(leaver) = former.next_if(|leaver| leaver.id < entry.id) {
                gone += leaver.credit;
            }
            match former.next_if(|former| former.id == entry.id) {
                Some(former) => entry.credit = former.credit,
                None => {
                    *is_new = true;
                    new_weight += entry.weight as f64;
                }
            }
        }
        gone += former.map(|leaver| leaver.credit).sum::<i128>();
        let same = gone == 0 && total == self.total && (new_weight == 0.0 || self.vacancy == 0.0);
        if same {
            return Self { entries, total, vacancy: self.vacancy };
        }
        // Everything in picks from here on.
        let unit = total as f64 * FINE as f64;
        let gone = gone as f64 / (self.total as f64 * FINE as f64) + self.vacancy;
        let ahead = gone.clamp(-1.0, 0.0);
        let (for_new, vacancy) = if new_weight > 0.0 { (ahead, 0.0) } else { (0.0, ahead) };
        let spread = (gone - ahead) * FINE as f64;
        for (entry, is_new) in entries.iter_mut().zip(is_new) {
            let weight = entry.weight as f64;
            let taken = if is_new { for_new * weight / new_weight * unit } else { 0.0 };
            entry.credit = whole(float(entry.credit) * scale + spread * weight + taken);
        }
        // Rounding must not change the sum.
        let rest: i128 = entries.iter().map(|entry| entry.credit).sum();
        if let Some(first) = entries.first_mut() {
            first.credit -= rest + whole(vacancy * unit);
        }
        Self { entries, total, vacancy }
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
/// that has no credit at first, all that have not been picked would be tied, and one
/// whose weight is raised would be next everywhere.
pub(super) fn scatter(mut entries: Vec<Entry>, seed: u64) -> Credits {
    let n = entries.len() as i128;
    let all = total(&entries) * FINE;
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
    Credits::none(entries)
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

    fn carried(former: &[Entry], entries: Vec<Entry>) -> (Vec<f64>, f64) {
        let former = Credits { vacancy: 0.0, ..Credits::none(former.to_vec()) };
        let carried = former.carry(entries);
        let unit = carried.total as f64 * FINE as f64;
        let picks: Vec<_> =
            carried.entries.iter().map(|entry| entry.credit as f64 / unit).collect();
        let sum: f64 = picks.iter().sum();
        assert!((sum + carried.vacancy).abs() < 1e-9, "{picks:?}");
        (picks, carried.vacancy)
    }

    #[test]
    fn credits_are_carried_in_picks() {
        let former = [entry(1, 1, 3), entry(2, 4, -3)];
        let (picks, _) = carried(&former, vec![entry(1, 10, 0), entry(2, 5, 0)]);
        assert!((picks[0] - 0.6).abs() < 1e-9, "{picks:?}");
    }

    #[test]
    fn what_a_leaver_was_ahead_goes_to_a_newcomer() {
        let former = [entry(1, 1, 1), entry(2, 1, 1), entry(3, 2, -2)];
        let (picks, vacancy) = carried(&former, vec![entry(1, 1, 0), entry(2, 1, 0)]);
        assert_eq!((picks, vacancy), (vec![0.25, 0.25], -0.5));
        let all = vec![entry(1, 1, 0), entry(2, 1, 0), entry(4, 2, 0)];
        assert_eq!(carried(&former, all), (vec![0.25, 0.25, -0.5], 0.0));
    }

    #[test]
    fn scattered_credits_are_apart_and_sum_to_nothing() {
        for n in 1..50 {
            let entries: Vec<_> = (0..n).map(|id| entry(id, 1 + id % 7, 0)).collect();
            let mut entries = scatter(entries, 5).entries;
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
        let (picks, _) = carried(&former, vec![entry(1, 1, 0), entry(3, 3, 0)]);
        assert!((picks[0] - (-0.5 + 0.125)).abs() < 1e-9, "{picks:?}");
        let all = vec![entry(1, 1, 0), entry(2, 1, 0), entry(3, 2, 0), entry(4, 9, 0)];
        assert_eq!(carried(&former, all).0[3], 0.0);
    }
}
