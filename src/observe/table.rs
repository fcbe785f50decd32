//! Statistics as a table.

use std::fmt;

use super::stats::{EndpointStats, Stats};

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; discovery {:?}", self.counts, self.discovery)?;
        if self.panic {
            write!(f, "; panic mode")?;
        }
        writeln!(f, "; {} calls wait", self.waiting)?;
        write_row(f, TITLES.each_ref().map(|title| title as &dyn fmt::Display))?;
        let total = self.endpoints.iter().map(|endpoint| endpoint.picks).sum();
        self.endpoints
            .iter()
            .try_for_each(|endpoint| write_endpoint(f, endpoint, total))
    }
}

const TITLES: [&str; 9] = [
    "endpoint",
    "state",
    "weight",
    "in flight",
    "picks",
    "share",
    "failures",
    "drops",
    "returns in",
];

/// Writes the row of an endpoint; `total` is the number of picks of all endpoints.
fn write_endpoint(f: &mut fmt::Formatter<'_>, endpoint: &EndpointStats, total: u64) -> fmt::Result {
    let share = 100.0 * endpoint.picks as f64 / total.max(1) as f64;
    let returns_in = endpoint
        .returns_in
        .map(|left| format!("{:.1} s", left.as_secs_f64()));
    write_row(
        f,
        [
            &endpoint.name,
            &endpoint.state,
            &weight(endpoint),
            &endpoint.in_flight,
            &endpoint.picks,
            &format!("{share:.1}%"),
            &endpoint.failures,
            &endpoint.drops,
            &returns_in.unwrap_or_default(),
        ],
    )
}

/// Returns the weight, after the effective weight if the two differ.
fn weight(endpoint: &EndpointStats) -> String {
    let (weight, effective) = (endpoint.weight, endpoint.effective_weight);
    if effective == f64::from(weight) || effective == 0.0 {
        return weight.to_string();
    }
    format!("{effective:.2}/{weight}")
}

fn write_row(f: &mut fmt::Formatter<'_>, cells: [&dyn fmt::Display; 9]) -> fmt::Result {
    let [
        name,
        state,
        weight,
        in_flight,
        picks,
        share,
        failures,
        drops,
        returns_in,
    ] = cells;
    write!(
        f,
        "{name:<20} {state:>9} {weight:>9} {in_flight:>9} {picks:>10} {share:>6}"
    )?;
    writeln!(f, " {failures:>8} {drops:>7} {returns_in:>9}")
}
