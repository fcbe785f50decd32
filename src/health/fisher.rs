//! Fisher's exact test, one-sided.

/// Terms below this part of the sum end the summation: those that follow are smaller still.
const NEGLIGIBLE: f64 = 1e-12;

/// Returns the probability that an endpoint like the rest has at least `bad` bad calls among `all`.
///
/// The rest has `rest_bad` bad calls among `rest_all`. The result is exact: for a given number of bad
/// calls in total, each way to distribute them among the calls has the same probability (R. A.
/// Fisher, "The design of experiments", 1935). Cost: a few dozen steps where the result is small.
pub(super) fn tail(bad: u64, all: u64, rest_bad: u64, rest_all: u64) -> f64 {
    let (total_bad, total) = (bad + rest_bad, all + rest_all);
    let most = total_bad.min(all);
    let good = total - total_bad;
    let mut term =
        (ln_choose(total_bad, bad) + ln_choose(good, all - bad) - ln_choose(total, all)).exp();
    let mut sum = 0.0;
    for x in bad..=most {
        sum += term;
        if term <= sum * NEGLIGIBLE {
            break;
        }
        // The ratio of the hypergeometric terms of x + 1 and x.
        let numerator = (total_bad - x) as f64 * (all - x) as f64;
        let rest_good = good + x + 1 - all.min(good + x + 1);
        let denominator = (x + 1) as f64 * rest_good as f64;
        term *= if denominator > 0.0 {
            numerator / denominator
        } else {
            0.0
        };
    }
    sum.min(1.0)
}

/// Returns the natural logarithm of the binomial coefficient.
fn ln_choose(n: u64, k: u64) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Returns ln n!, from 10 on by Stirling's series, whose error is then below 1e-10.
fn ln_factorial(n: u64) -> f64 {
    if n < 10 {
        return (2..=n).map(|i| (i as f64).ln()).sum();
    }
    let x = n as f64;
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    x * x.ln() - x + 0.5 * (std::f64::consts::TAU * x).ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by the binomial coefficients themselves.
    fn counted(bad: u64, all: u64, rest_bad: u64, rest_all: u64) -> f64 {
        let choose = |n: u64, k: u64| {
            if k > n {
                0.0
            } else {
                (0..k).fold(1.0, |c, i| c * (n - i) as f64 / (i + 1) as f64)
            }
        };
        let (total_bad, total) = (bad + rest_bad, all + rest_all);
        let ways = |x| choose(total_bad, x) * choose(total - total_bad, all.saturating_sub(x));
        (bad..=all.min(total_bad)).map(ways).sum::<f64>() / choose(total, all)
    }

    #[test]
    fn agrees_with_counting() {
        for all in 1..14 {
            for rest_all in 1..14 {
                for bad in 0..=all {
                    for rest_bad in 0..=rest_all {
                        let want = counted(bad, all, rest_bad, rest_all);
                        let got = tail(bad, all, rest_bad, rest_all);
                        assert!(
                            (got - want).abs() < 1e-9,
                            "{bad}/{all} {rest_bad}/{rest_all}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn large_numbers_are_no_trouble() {
        let even = tail(500_000, 1_000_000, 5_000_000, 10_000_000);
        assert!((even - 0.5).abs() < 0.01, "{even}");
        assert!(tail(510_000, 1_000_000, 5_000_000, 10_000_000) < 1e-20);
        assert_eq!(tail(1_000_000, 1_000_000, 0, 10_000_000), 0.0);
        assert_eq!(tail(0, 100, 0, 100), 1.0);
    }
}
