//! Credits of the endpoints, and how they carry over a change of the set.

use crate::util::{fraction::gcd, random::splitmix64};

/// One eligible endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// Its index among the members.
    pub(super) index: u32,
    /// Its weight, divided by the greatest common divisor of all.
    pub(super) weight: u64,
    /// Its credit at the start, in units of 1/(total × [`FINE`]) picks.
    pub(super) credit: i128,
}

/// The resolution of credits beside weights, so that rounding from one total to another is
/// negligible. The sums of weights are below 2^96, so credits stay far below the limit of `i128`.
pub(super) const FINE: i128 = 1 << 32;

impl Entry {
    /// Returns endpoints by index, id and weight, without credit.
    pub(super) fn of(shares: impl Iterator<Item = (u32, u64, u64)>) -> Vec<Self> {
        let entry = |(index, id, weight)| Self {
            id,
            index,
            weight,
            credit: 0,
        };
        let mut entries: Vec<_> = shares.map(entry).collect();
        let common = entries
            .iter()
            .fold(0, |common, entry| gcd(common, entry.weight));
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

/// The credits of the endpoints at one position of a sequence.
#[derive(Debug, Clone)]
pub(super) struct Credits {
    /// In rising order of ids.
    pub(super) entries: Vec<Entry>,
    /// The sum of their weights.
    pub(super) total: i128,
    /// The negative credit of endpoints that have left, which the next new endpoints get: from -1
    /// to 0, in picks.
    pub(super) debt: f64,
}

impl Credits {
    /// Starts without credit.
    pub(super) fn none(entries: Vec<Entry>) -> Self {
        Self {
            total: total(&entries),
            entries,
            debt: 0.0,
        }
    }

    /// Returns the credits of other entries: those that are here by id, in units of picks.
    ///
    /// The credit of endpoints that have left is spread over the others by weight. Negative credit,
    /// up to one pick, goes to new endpoints instead, now or later: spread over those that stay, it
    /// would cost them the pick that a heavy endpoint got before another replaced it.
    pub(super) fn carry(&self, mut entries: Vec<Entry>) -> Self {
        let total = total(&entries);
        let Matched {
            left,
            is_new,
            new_weight,
        } = self.copy_to(&mut entries);
        let unchanged = left == 0 && total == self.total && (new_weight == 0.0 || self.debt == 0.0);
        if unchanged {
            return Self {
                entries,
                total,
                debt: self.debt,
            };
        }
        // From here on in picks.
        let unit = total as f64 * FINE as f64;
        let left = left as f64 / (self.total as f64 * FINE as f64) + self.debt;
        let negative = left.clamp(-1.0, 0.0);
        let (for_new, debt) = if new_weight > 0.0 {
            (negative, 0.0)
        } else {
            (0.0, negative)
        };
        let scale = total as f64 / self.total as f64;
        let spread = (left - negative) * FINE as f64;
        for (entry, is_new) in entries.iter_mut().zip(is_new) {
            let weight = entry.weight as f64;
            let taken = if is_new {
                for_new * weight / new_weight * unit
            } else {
                0.0
            };
            entry.credit = whole(float(entry.credit) * scale + spread * weight + taken);
        }
        set_sum(&mut entries, -whole(debt * unit));
        Self {
            entries,
            total,
            debt,
        }
    }

    /// Copies the credits of these entries to other entries of the same ids. Both are in rising
    /// order of ids.
    fn copy_to(&self, entries: &mut [Entry]) -> Matched {
        let mut matched = Matched {
            left: 0,
            is_new: vec![false; entries.len()],
            new_weight: 0.0,
        };
        let mut former = self.entries.iter().peekable();
        for (entry, is_new) in entries.iter_mut().zip(&mut matched.is_new) {
            while let Some(other) = former.next_if(|other| other.id < entry.id) {
                matched.left += other.credit;
            }
            if let Some(same) = former.next_if(|other| other.id == entry.id) {
                entry.credit = same.credit;
            } else {
                *is_new = true;
                matched.new_weight += entry.weight as f64;
            }
        }
        matched.left += former.map(|other| other.credit).sum::<i128>();
        matched
    }
}

/// What a change of the entries leaves to distribute.
struct Matched {
    /// The sum of the credits of endpoints that have left.
    left: i128,
    /// Which entries are new.
    is_new: Vec<bool>,
    /// The sum of their weights.
    new_weight: f64,
}

/// Makes the credits sum to this, by the credit of the first entry: rounding leaves a rest.
fn set_sum(entries: &mut [Entry], sum: i128) {
    let present: i128 = entries.iter().map(|entry| entry.credit).sum();
    if let Some(first) = entries.first_mut() {
        first.credit -= present - sum;
    }
}

/// Converts by way of 64 bits where they hold the number, which is faster.
fn float(number: i128) -> f64 {
    i64::try_from(number).map_or_else(|_| number as f64, |number| number as f64)
}

/// Converts back, dropping the fraction: a 2^32nd part of a pick over the total.
fn whole(number: f64) -> i128 {
    const SAFE: f64 = (1_u64 << 62) as f64;
    if number.abs() < SAFE {
        i128::from(number as i64)
    } else {
        number as i128
    }
}

/// Gives the endpoints of a fresh balancer credits at even distances, in random order.
///
/// They lie between -1/2 and 1/2 picks and sum to zero, so the bounds hold from there on. They
/// differ, so there are no ties: with equal credits an endpoint that gets a greater weight would be
/// next in all balancers at once.
pub(super) fn scatter(mut entries: Vec<Entry>, seed: u64) -> Credits {
    let n = entries.len() as i128;
    let all = total(&entries) * FINE;
    let mut order: Vec<_> = (0..entries.len()).collect();
    order.sort_by_cached_key(|&place| splitmix64(seed ^ splitmix64(place as u64)));
    for (rank, place) in (0_i128..).zip(order) {
        entries[place].credit = (2 * rank + 1 - n) * all / (2 * n);
    }
    set_sum(&mut entries, 0);
    Credits::none(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, weight: u64, credit: i128) -> Entry {
        Entry {
            id,
            index: 0,
            weight,
            credit: credit * FINE,
        }
    }

    fn carried(former: &[Entry], entries: Vec<Entry>) -> (Vec<f64>, f64) {
        let former = Credits {
            debt: 0.0,
            ..Credits::none(former.to_vec())
        };
        let carried = former.carry(entries);
        let unit = carried.total as f64 * FINE as f64;
        let picks: Vec<_> = carried
            .entries
            .iter()
            .map(|entry| entry.credit as f64 / unit)
            .collect();
        let sum: f64 = picks.iter().sum();
        assert!((sum + carried.debt).abs() < 1e-9, "{picks:?}");
        (picks, carried.debt)
    }

    #[test]
    fn credits_are_carried_in_picks() {
        let former = [entry(1, 1, 3), entry(2, 4, -3)];
        let (picks, _) = carried(&former, vec![entry(1, 10, 0), entry(2, 5, 0)]);
        assert!((picks[0] - 0.6).abs() < 1e-9, "{picks:?}");
    }

    #[test]
    fn negative_credit_of_an_endpoint_that_left_goes_to_a_new_one() {
        let former = [entry(1, 1, 1), entry(2, 1, 1), entry(3, 2, -2)];
        let (picks, debt) = carried(&former, vec![entry(1, 1, 0), entry(2, 1, 0)]);
        assert_eq!((picks, debt), (vec![0.25, 0.25], -0.5));
        let all = vec![entry(1, 1, 0), entry(2, 1, 0), entry(4, 2, 0)];
        assert_eq!(carried(&former, all), (vec![0.25, 0.25, -0.5], 0.0));
    }

    #[test]
    fn scattered_credits_differ_and_sum_to_zero() {
        for n in 1..50 {
            let entries: Vec<_> = (0..n).map(|id| entry(id, 1 + id % 7, 0)).collect();
            let mut entries = scatter(entries, 5).entries;
            assert_eq!(entries.iter().map(|entry| entry.credit).sum::<i128>(), 0);
            let half = total(&entries) * FINE / 2;
            assert!(entries.iter().all(|entry| entry.credit.abs() <= half));
            entries.sort_by_key(|entry| entry.credit);
            assert!(
                entries
                    .windows(2)
                    .all(|pair| pair[0].credit < pair[1].credit)
            );
        }
    }

    #[test]
    fn positive_credit_of_an_endpoint_that_left_is_spread_by_weight() {
        let former = [entry(1, 1, -2), entry(2, 1, 2), entry(3, 2, 0)];
        let (picks, _) = carried(&former, vec![entry(1, 1, 0), entry(3, 3, 0)]);
        assert!((picks[0] - (-0.5 + 0.125)).abs() < 1e-9, "{picks:?}");
        let all = vec![
            entry(1, 1, 0),
            entry(2, 1, 0),
            entry(3, 2, 0),
            entry(4, 9, 0),
        ];
        assert_eq!(carried(&former, all).0[3], 0.0);
    }
}
